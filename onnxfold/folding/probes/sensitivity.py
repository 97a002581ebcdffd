"""The part of a consumer's error that reaches the outputs, measured by one probe per group.

An error curve says what a group's consumers lose, each relative to its own output. What becomes of that on the way to
the network's outputs differs by orders of magnitude: the error of a residual branch is diluted by the stream, that of
the stem is amplified by all that follows. So one narrower width of every group is tried on a few samples: what its
consumers read, x, is replaced by M x, the best linear estimate from the channels that would be left, and the
rest of the network is run as it is. The ratio

    sensitivity = relative error of the outputs / sum of the relative errors of the consumers

is what the group's error curve is multiplied by. Every probe is a trial, see :mod:`onnxfold.folding.probes.trials`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from onnxfold.budget.costs.running import count_token_macs
from onnxfold.channels.declarations import Axis, Role
from onnxfold.channels.group import FoldGroup, lists_by_key
from onnxfold.cluster.partition import ChannelPartition
from onnxfold.cluster.task import Candidates
from onnxfold.folding.probes.trials import Change, TrialOutcome, run_trials
from onnxfold.graph.nodes import node_key
from onnxfold.graph.tensors import Array, Matrix, Weight, loaded, working_type
from onnxfold.graph.view import GraphView
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.inputs.tokens.answers import TokenAnswers
from onnxfold.inputs.walk_batches import affordable_samples
from onnxfold.language.lookups import QUERIES_ELSEWHERE, RARE_ELSEWHERE
from onnxfold.progress import Progress, part_of, silent
from onnxfold.statistics.activations import Batches
from onnxfold.statistics.observe import ConsumerMoments
from onnxfold.statistics.samples import parts

#: What the progress callback is told.
STAGE = "probe groups"
#: A probe tries the widest width whose error is at least this.
_ERROR = 0.05
#: Sensitivities are kept within these bounds.
_LEAST, _MOST = 1e-2, 1e2
#: Added to the diagonal of a covariance, relative to its mean.
_RIDGE = 1e-3
_TINY = float(np.finfo(np.float64).tiny)
#: Positions of an activation that are narrowed at a time.
_ROWS = 1 << 15
#: Members whose activations a probe narrows.
_READ = Role.CONSUMER, Role.BASIS


def sensitivities(
    view: GraphView, groups: Sequence[FoldGroup], batches: Batches, probes: Mapping[int, "Probe"],
    progress: Progress = silent, *, tokens: TokenAnswers | None = None,
) -> Matrix:  # fmt: skip
    """Return the sensitivity of every group of a graph."""
    changes: dict[tuple[str, int, Axis], Change] = {}
    for i, probe in probes.items():
        consumers, bases = ([use for m in groups[i].with_role(role) for use in m.uses] for role in _READ)
        read = [(use.node, use.channels) for use in consumers if use.channels in groups[i].tensors]
        read += [(node_key(n), use.channels) for use in bases for n in view.consumers(use.channels.tensor)]
        for node, axis in read if probe.is_lossy else ():
            changes[node, i, axis] = Change(i, axis.tensor, partial(probe.narrow, axis=axis))
    once = lists_by_key((node, change) for (node, _, _), change in changes.items())
    outcomes = run_trials(view, batches, once, partial(progress, STAGE), tokens=tokens)
    return np.array([probes[i].sensitivity(outcomes[i]) if i in outcomes else 1.0 for i in range(len(groups))])


class Probe:
    """One group at one width, which its consumers' moments are needed for no longer."""

    def __init__(
        self, group: FoldGroup, candidates: Candidates, moments: Sequence[ConsumerMoments], *, of_tokens: bool,
        held: Callable[[Array], Weight] = np.asarray,
    ) -> None:  # fmt: skip
        self._predicted = 0.0
        self._table: tuple[Matrix, Matrix] | None = None
        self._scored = {use.channels for member in group.scoring for use in member.uses}
        self._group, self._of_tokens = group, of_tokens
        self._has_bias = all(seen.has_bias for seen in moments)
        errors = candidates.errors
        widths = np.arange(group.size - group.block_count, 0, -group.block_count)
        lossy = widths[np.isfinite(errors[widths]) & (errors[widths] > 0.0)]
        self.is_lossy = len(lossy) > 0
        if not self.is_lossy:
            return
        widest = group.seam.widest if group.is_between_factors else group.size
        far = lossy[lossy <= widest // 2] if of_tokens else lossy[errors[lossy] >= _ERROR]
        width = int(far[0] if len(far) else lossy[-1])
        self._predicted = float(errors[width])
        partition = candidates.partition(width)
        if group.is_part:
            self._table = partition.encode, partition.decode
            return
        covariance = moments[0].trusted / max(moments[0].energy, _TINY)
        for seen in moments[1:]:
            covariance += seen.trusted / max(seen.energy, _TINY)
        covariance /= len(moments)
        # Words are multiplied in float32.
        try:
            self._estimate = Estimate(partition, covariance, np.float32 if of_tokens else np.float64, held)
        except (LinAlgError, ValueError):  # activations overflow
            self.is_lossy = False

    def narrow(self, batches: Iterable[Array], axis: Axis) -> Callable[[Array], Array]:
        """Return the function that gives an activation, any of these batches, as the channels that are left tell it."""
        means = []
        for values in batches if self._has_bias else ():
            rows = np.moveaxis(values, axis.axis, -1).reshape(-1, values.shape[axis.axis])
            means.append(rows.astype(working_type(values), copy=False).mean(axis=0))
        return partial(self._narrow_one, axis=axis, mean=np.mean(means, axis=0) if means else None)

    def _narrow_one(self, values: Array, axis: Axis, mean: Array | None) -> Array:
        moved, places = np.moveaxis(values, axis.axis, -1).copy(), self._group.tensors[axis].T
        kind, rows = working_type(values), moved.reshape(-1, moved.shape[-1])
        mean = np.zeros((), kind) if mean is None else mean[places]
        table = None if self._table is None else [matrix.astype(kind) for matrix in self._table]
        for part in parts(len(rows), _ROWS):
            x = rows[part][:, places].astype(kind, copy=False)
            if table is not None:
                # Rows of a narrower table are Q P x, and the states that it scores P^T Q^T h.
                encode, decode = table
                rows[part, places] = x @ decode @ encode if axis in self._scored else x @ encode.T @ decode.T
            else:
                estimate = self._estimate.of((x - mean).reshape(-1, x.shape[-1]))
                rows[part, places] = estimate.reshape(x.shape) + mean
        return np.ascontiguousarray(np.moveaxis(moved, -1, axis.axis))

    def sensitivity(self, outcome: TrialOutcome) -> float:
        """Return the loss at the outputs per error of the consumers."""
        base = self._predicted if self._of_tokens else outcome.local
        if not np.isfinite(base) or base <= 0.0 or not np.isfinite(outcome.mean_loss):
            return 1.0
        return float(np.clip(outcome.mean_loss / base, _LEAST, _MOST))


class Estimate:
    """The best linear estimate M x of all channels, M = C P^T (P C P^T)^-1 P."""

    def __init__(
        self, partition: ChannelPartition, covariance: Matrix, dtype: npt.DTypeLike, held: Callable[[Array], Weight]
    ) -> None:
        cross, inner = partition.encode_moments(covariance)
        inner[np.diag_indices_from(inner)] += _RIDGE * float(np.trace(inner)) / len(inner) + _TINY
        factor, _ = cho_factor(inner, lower=True, overwrite_a=True)
        self._partition = partition
        self._factor, self._cross = held(factor.astype(dtype, copy=False)), held(cross.astype(dtype, copy=False))

    def of(self, samples: Array) -> Array:
        """Return the estimate for centred samples of shape (S, n)."""
        factor, cross = (loaded(weight).astype(samples.dtype, copy=False) for weight in (self._factor, self._cross))
        seen = self._partition.encode_samples(samples)
        # Of a few words solving for them takes less, of many pixels solving for the columns of M.
        if len(seen) < cross.shape[1]:
            estimate: Array = cho_solve((factor, True), seen.T, check_finite=False).T @ cross
            return estimate
        return np.asarray(seen @ cho_solve((factor, True), cross, check_finite=False))


#: Samples of a probe, and fewer where their activations take more memory, but two.
SAMPLES, _BYTES, _FEWEST = 8, 384 << 20, 2
#: Most multiply-accumulates of one network on the inputs of rare words.
_COST = 3e11


def measured_sensitivities(
    view: GraphView, groups: Sequence[FoldGroup], inputs: ModelInputs, probes: Mapping[int, Probe], progress: Progress
) -> Matrix:
    """Return the sensitivity of every group, shape (n_groups,); 1 where nothing could be measured."""
    tables = {i: probe for i, probe in probes.items() if groups[i].is_part}
    others = {i: probe for i, probe in probes.items() if i not in tables}
    samples = SAMPLES if inputs.are_tokens else affordable_samples(view, _BYTES, _FEWEST, SAMPLES)
    few, is_text = inputs.few_batches(samples), not inputs.facts.are_words_alone
    texts = ([[batch] for batch in _affordable(view, inputs)] or [few]) if tables else []
    count = len(texts) + bool(others)

    def walked(walk: int, batches: Batches, tried: Mapping[int, Probe]) -> Matrix:
        return sensitivities(view, groups, batches, tried, part_of(progress, walk, count), tokens=inputs.tokens.answers)

    by_group = walked(0, few, others) if others else np.ones(len(groups))
    if tables:
        each = [walked(walk, batches, tables) for walk, batches in enumerate(texts, count - len(texts))]
        of_tables: Matrix = np.mean(each, axis=0)
        by_group[list(tables)] = of_tables[list(tables)] * (RARE_ELSEWHERE if is_text else 1.0)
    if is_text:
        by_group[[i for i, group in enumerate(groups) if group.is_between_factors]] *= QUERIES_ELSEWHERE
    return by_group


def _affordable(view: GraphView, inputs: ModelInputs) -> Iterator[dict[str, Array]]:
    """Yield batches that a network reads at no more than some cost."""
    left, each = _COST, max(float(count_token_macs(view)), 1.0)
    for batch in inputs.batches:
        tokens = max((values.size for values in batch.values() if values.dtype.kind in "iu"), default=1)
        left -= each * tokens
        if left < 0.0:
            return
        yield batch
