"""The part of a consumer's error that reaches the outputs, measured by one probe per group.

An error curve says what a group's consumers lose, each relative to its own output. What becomes of that on the way to
the network's outputs differs by orders of magnitude: the error of a residual branch is diluted by the stream, that of
the stem is amplified by all that follows. So one narrower width of every group is tried on a few samples: what its
consumers read, x, is replaced by M x, the best linear estimate from the channels that would be left, and the
rest of the network is run as it is. The ratio

    sensitivity = relative error of the outputs / sum of the relative errors of the consumers

is what the group's error curve is multiplied by. All probes are batches beside each other in one walk; a group's probe
begins where its first consumer is met.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from onnxfold.channels.declarations import Axis, Role
from onnxfold.channels.group import FoldGroup
from onnxfold.cluster.candidates import Candidates, seen_by
from onnxfold.cluster.partition import ChannelPartition, Labels, Selection
from onnxfold.graph.axes import working_type
from onnxfold.graph.nodes import node_key
from onnxfold.graph.tensors import Array, Matrix
from onnxfold.graph.view import GraphView
from onnxfold.inputs.tokens.answers import Answers, TokenAnswers
from onnxfold.progress import Progress, silent
from onnxfold.statistics.activations import Activations
from onnxfold.statistics.observe import ConsumerMoments

#: Samples of a probe.
SAMPLES = 8
#: A probe tries the widest width whose error is at least this.
_ERROR = 0.05
#: Sensitivities are kept within these bounds.
_LEAST, _MOST = 1e-2, 1e2
#: Added to the diagonal of a covariance, relative to its mean.
_RIDGE = 1e-3
_TINY = float(np.finfo(np.float64).tiny)


def sensitivities(
    view: GraphView,
    groups: Sequence[FoldGroup],
    batch: dict[str, Array],
    probes: Mapping[int, "Probe"],
    progress: Progress = silent,
    *,
    tokens: TokenAnswers | None = None,
) -> Matrix:
    """Return the sensitivity of every group of a graph.

    Parameters
    ----------
    view : GraphView
        The graph as it was observed.
    groups : sequence of FoldGroup
        Its groups.
    batch : dict
        Inputs.
    probes : mapping of int to Probe
        Of every group whose consumers were seen, by its number.
    progress : callable, optional
        Called for every node.
    tokens : TokenAnswers, optional
        What the outputs of a language model are. Every position is a sample there, and of scores the divergence is
        what is lost.

    Returns
    -------
    ndarray of shape (n_groups,)
        1 where nothing could be measured.
    """
    walk = Activations(view, [batch])
    readers: dict[str, dict[tuple[int, Axis], None]] = {}
    for i, probe in probes.items():
        for member in groups[i].with_role(Role.CONSUMER) if probe.is_lossy else ():
            for use in member.uses:
                readers.setdefault(use.node, {})[i, use.channels] = None
    answers = set(view.output_names) - set(tokens.states if tokens is not None else ())
    nodes = view.nodes
    for done, node in enumerate(nodes):
        progress("probe groups", done, len(nodes))
        instead: dict[int, dict[str, Array]] = {}
        met: dict[int, Array] = {}
        for i, axis in readers.get(node_key(node), ()):
            probe = probes[i]
            if axis.tensor not in walk.values or axis not in groups[i].tensors:
                continue
            if probe.place < 0:
                probe.place = walk.fork()
            values = walk.values[axis.tensor][probe.place]
            met[i] = walk.trial(node, probe.place)
            instead.setdefault(probe.place, {})[axis.tensor] = probe.narrowed(values, axis)
        # Scores of all words take most of the memory: where nothing reads them, only one batch is there at a time.
        results: Iterator[dict[str, Array]] = walk.results(node, instead)
        if met or any(map(walk.is_read, node.output)):
            walk.run(node, instead)
            for i, was in met.items():
                probes[i].local += relative_error(was, walk.values[node.output[0]][probes[i].place])
            results = walk.batches(node)
        given = answers.intersection(node.output)
        if given:
            by_place = {probe.place: probe for probe in probes.values()}
            for place, lost in enumerate(lost_answers(results, [n for n in node.output if n in given], tokens), 1):
                by_place[place].lost += lost
        walk.release(node)
    return np.array([probes[i].sensitivity if i in probes else 1.0 for i in range(len(groups))])


def lost_answers(
    results: Iterator[dict[str, Array]], names: Sequence[str], tokens: TokenAnswers | None
) -> Iterator[list[float]]:
    """Yield what every batch but the first, which is the original's, loses of some outputs; only floats are compared.

    Parameters
    ----------
    results : iterator of dict
        Outputs by name, batch by batch.
    names : sequence of str
        The outputs to compare.
    tokens : TokenAnswers, optional
        What the outputs of a language model are: of scores the divergence is measured, of others the relative error.
    """
    first = next(results)
    losses = {name: _loss(first[name], tokens) for name in names if first[name].dtype.kind == "f"}
    for result in results:
        yield [loss(result[name]) for name, loss in losses.items()]


def _loss(was: Array, tokens: TokenAnswers | None) -> Callable[[Array], float]:
    """Return what measures how much of an output is lost."""
    if tokens is None:
        return partial(relative_error, was)
    if tokens.are_scores(was):
        return Answers(was).divergence
    return lambda is_now: relative_error(*(values.reshape(-1, values.shape[-1]) for values in (was, is_now)))


class Probe:
    """One group at one width, which its consumers' moments are needed for no longer.

    Parameters
    ----------
    group : FoldGroup
        The group.
    candidates : Candidates
        What it could become.
    moments : sequence of ConsumerMoments
        What its consumers read.
    of_tokens : bool
        Whether positions of texts are the samples. A probe then halves its group, and is compared with the error that
        is predicted for this: a few words differ too much from all of them, as the first word of a text from the
        others, for a relative error of their own.

    Attributes
    ----------
    place : int
        The number of its batch; -1 before its first consumer is met.
    local : float
        Sum of its consumers' relative errors.
    lost : list of float
        What every output loses.
    """

    def __init__(
        self, group: FoldGroup, candidates: Candidates, moments: Sequence[ConsumerMoments], *, of_tokens: bool
    ) -> None:
        self.place, self.local, self._predicted = -1, 0.0, 0.0
        self.lost: list[float] = []
        self._group, self._of_tokens = group, of_tokens
        self._has_bias = all(seen.has_bias for seen in moments)
        errors = candidates.errors
        widths = np.arange(group.size - group.block_count, 0, -group.block_count)
        lossy = widths[np.isfinite(errors[widths]) & (errors[widths] > 0.0)]
        self.is_lossy = len(lossy) > 0
        if not self.is_lossy:
            return
        far = lossy[lossy <= group.size // 2] if of_tokens else lossy[errors[lossy] >= _ERROR]
        width = int(far[0] if len(far) else lossy[-1])
        self._predicted = float(errors[width])
        partition = candidates.partition(width)
        covariance = moments[0].trusted / max(moments[0].energy, _TINY)
        for seen in moments[1:]:
            covariance += seen.trusted / max(seen.energy, _TINY)
        covariance /= len(moments)
        self._map, self._read = estimate(partition, covariance)
        if of_tokens:
            self._map = self._map.astype(np.float32)  # what it is applied to

    def narrowed(self, values: Array, axis: Axis) -> Array:
        """Return an activation as the channels that are left tell it."""
        moved = np.moveaxis(values, axis.axis, -1).copy()
        read = self._map.T.astype(working_type(values), copy=False)
        for where in self._group.tensors[axis].T:
            x = moved[..., where].astype(read.dtype, copy=False)
            mean = x.reshape(-1, len(where)).mean(axis=0) if self._has_bias else np.zeros(len(where), x.dtype)
            moved[..., where] = (x - mean)[..., self._read] @ read + mean
        return np.ascontiguousarray(np.moveaxis(moved, -1, axis.axis))

    @property
    def sensitivity(self) -> float:
        """What became of the consumers' errors at the outputs."""
        base = self._predicted if self._of_tokens else self.local
        if self.place < 0 or not np.isfinite(base) or base <= 0.0:
            return 1.0
        known = [error for error in self.lost if np.isfinite(error)]
        return float(np.clip(np.mean(known) / base, _LEAST, _MOST)) if known else 1.0


def estimate(partition: ChannelPartition, covariance: Matrix) -> tuple[Array, Labels]:
    """Return the columns of M = C P^T (P C P^T)^-1 P that are not zero, and which: M x estimates x from P x best."""
    cross, inner = seen_by(partition, covariance)
    inner[np.diag_indices_from(inner)] += _RIDGE * float(np.trace(inner)) / len(inner) + _TINY
    found = np.linalg.solve(inner, cross).T
    if isinstance(partition, Selection):
        return found, partition.representatives
    return found @ partition.encode, np.arange(partition.size)


def relative_error(was: Array, is_now: Array) -> float:
    """Return the squared error relative to the variance over samples, or to the square of a single one; NaN if zero."""
    was, is_now = was.astype(np.float64), is_now.astype(np.float64)
    scale = float(np.square(was - was.mean(axis=0) if len(was) > 1 else was).sum())
    return float(np.square(is_now - was).sum()) / scale if scale > 0.0 else np.nan
