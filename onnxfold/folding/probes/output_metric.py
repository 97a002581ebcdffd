"""The metric that the outputs of a language model put on the rows of its tables.

docs/mathematics.md says how.
"""

from collections.abc import Callable

import numpy as np

from onnxfold.budget.costs.running import count_token_macs, model_size
from onnxfold.channels.declarations import Role
from onnxfold.channels.group import FoldGroup
from onnxfold.errors import OnnxFoldError
from onnxfold.folding.prepare import Prepared
from onnxfold.graph.run.node_runner import with_addend
from onnxfold.graph.run.session import Session
from onnxfold.graph.tensors import Array, Matrix
from onnxfold.graph.view import GraphView
from onnxfold.inputs.tokens.answers import TokenAnswers, log_softmax
from onnxfold.progress import Progress

#: Length of a step, relative to that of a row.
_STEP = 0.02
#: Outputs of a token are added up in so many buckets, if they are more.
_BUCKETS = 512
#: Most multiply-accumulates of all runs, and most weights of a model that is run.
_COST, _WEIGHTS = 4e12, 4e8
#: Added to the diagonal, relative to its mean: no direction is free.
_RIDGE = 1e-3


def output_metrics(prepared: Prepared, progress: Progress) -> dict[int, Matrix]:
    """Return the metric of every group that a table makes, by its number; none where it cannot be measured."""
    inputs, view = prepared.inputs, prepared.scope.analysed
    if inputs is None or inputs.tokens.short is None or inputs.tokens.answers is None:
        return {}
    metrics: dict[int, Matrix] = {}
    batch = inputs.tokens.short
    tokens = max((values.size for values in batch.values() if values.dtype.kind in "iu"), default=1)
    for i, group in enumerate(prepared.groups):
        is_table = group.seam.spare and not group.norms and not group.is_part and not group.is_between_factors
        if (
            is_table
            and count_token_macs(view) * tokens * group.size <= _COST
            and model_size(view).parameters <= _WEIGHTS
        ):
            try:
                metric = _metric(view, group, batch, inputs.tokens.answers, prepared.seed, progress)
            except OnnxFoldError:  # then variances alone decide
                continue
            if metric is not None:
                metrics[i] = metric
    return metrics


def _metric(
    view: GraphView, group: FoldGroup, batch: dict[str, Array], answers: TokenAnswers, seed: int, progress: Progress
) -> Matrix | None:
    (member, *more) = group.with_role(Role.CONSUMER)
    node = view.producer(member.uses[0].node)
    if more or len(member.uses) > 1 or node is None or node.input[0] in view.output_names:
        return None
    probed, addend = with_addend(view, node)
    session = Session(probed)
    if session.is_twin:
        return None
    random = np.random.default_rng(seed)
    chosen = [i for i, name in enumerate(session.output_names[:-1]) if name not in answers.states]

    def run(added: Array) -> list[Array]:
        return session.run({**batch, addend: added})

    base = run(np.zeros(group.size, np.float32))
    rows = base[-1]
    floats = [i for i in chosen if base[i].dtype.kind == "f" and base[i].ndim > 1]
    if rows.dtype != np.float32 or not floats:
        return None
    step = _STEP * float(np.sqrt(np.square(rows, dtype=np.float64).sum(axis=-1).mean()))
    flips = random.choice(np.array([-step, step], np.float32), rows.shape[:-1])
    signs = {i: random.choice(np.array([-1.0, 1.0], np.float32), base[i].shape[-1]) for i in floats}
    change = {i: _change_function(base[i], answers) for i in floats}
    changes = []
    for direction in range(group.size):
        progress("probe groups", direction, group.size)
        added = np.zeros(rows.shape, np.float32)
        added[..., direction] = flips
        moved = run(added)
        parts = [_sketch(change[i](moved[i]), signs[i]) for i in floats]
        changes.append(np.concatenate([part.reshape(-1) for part in parts]))
    table = np.array(changes)
    metric = np.asarray(table @ table.T, np.float64)
    mean = float(np.trace(metric)) / len(metric)
    if not np.isfinite(metric).all() or not mean > 0.0:
        return None
    return metric / mean + _RIDGE * np.eye(len(metric))


def _change_function(was: Array, answers: TokenAnswers) -> Callable[[Array], Array]:
    """Return a function of the relative change of an output; of scores, half of its square is the divergence."""
    if not answers.are_scores(was):
        size = float(np.square(was - was.mean(axis=tuple(range(was.ndim - 1))), dtype=np.float64).sum())
        return lambda is_now: np.asarray(is_now - was, np.float32) * (1.0 / np.sqrt(size) if size > 0.0 else 0.0)
    logs = log_softmax(was)
    chances = np.exp(logs)

    def of_scores(is_now: Array) -> Array:
        apart = log_softmax(is_now) - logs
        return np.asarray(np.sqrt(chances) * (apart - (chances * apart).sum(axis=-1, keepdims=True)), np.float32)

    return of_scores


def _sketch(values: Array, signs: Array) -> Array:
    """Return values of shape (..., d), added up in buckets where d is large."""
    width = values.shape[-1]
    if width <= _BUCKETS:
        return values
    padded = np.pad((values * signs).astype(np.float32), [(0, 0)] * (values.ndim - 1) + [(0, -width % _BUCKETS)])
    sums: Array = padded.reshape(*values.shape[:-1], -1, _BUCKETS).sum(axis=-2)
    return sums
