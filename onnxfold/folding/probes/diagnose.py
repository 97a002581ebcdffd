"""Measure the effect of a fold on the activations: both networks side by side on a few inputs.

The variance ratio of a layer is the mean over the *original* channels i of Var(x'_c(i)) / Var(x_i), where c(i) is the
channel that i was merged into; averaging channels that are not equal makes it fall, layer after layer.

References
----------
REPAIR: arXiv 2211.08403; model folding: arXiv 2502.10216, section 3.
"""

from collections.abc import Sequence

import numpy as np

from onnxfold.channels.declarations import Axis, Positions, Role
from onnxfold.channels.group import FoldGroup, lists_by_key
from onnxfold.channels.layers import Layer, batch_norm, find_layers
from onnxfold.cluster.plan import FoldPlan
from onnxfold.errors import VerificationError
from onnxfold.graph.patterns import only_reader
from onnxfold.graph.run.session import sample_count
from onnxfold.graph.tensors import Array, Matrix
from onnxfold.graph.view import GraphView
from onnxfold.inputs.walk_batches import affordable_samples
from onnxfold.passes.repair.side_by_side import SideBySide
from onnxfold.progress import Progress, silent
from onnxfold.report.records import CORRELATION_BINS, CorrelationHistogram, Diagnostics, ErrorCurve, VarianceRatio
from onnxfold.statistics.activations import Batches
from onnxfold.statistics.moments import ChannelMoments, remove_mean
from onnxfold.statistics.observe import DEAD
from onnxfold.statistics.samples import stride_for, unit_samples

#: Samples that both networks are run on, and points of an error curve.
_SAMPLES = 64
#: Fewer where activations take more bytes than these: many positions of an image show a channel's variance, too.
_BYTES, _FEWEST = 1 << 28, 8
_POINTS = 16
#: A histogram is taken over so many channels, and over so many samples of each, spread evenly.
_CHANNELS = 1024
_CHANNEL_SAMPLES = 4096


def diagnose(
    original: GraphView, folded: GraphView, plan: FoldPlan, groups: Sequence[FoldGroup], inputs: Batches | None,
    progress: Progress = silent,
) -> Diagnostics:  # fmt: skip
    """Compare the activations of a network with those of its fold."""
    if inputs is None:
        return Diagnostics(not_run="this fold ran no network")
    samples = affordable_samples(original, _BYTES, _FEWEST, _SAMPLES)
    whole = inputs[: max(1, samples // max(sample_count(inputs[0]), 1))]
    try:
        return _measure_activations(SideBySide(original, folded, plan, whole), groups, progress)
    except VerificationError as error:
        return Diagnostics(not_run=str(error))


def error_curves(
    groups: Sequence[FoldGroup], errors: Sequence[Matrix], widths: Sequence[int]
) -> tuple[ErrorCurve, ...]:
    """Return some points of the error curve of every group, closer together where few channels are left."""
    curves = []
    for group, curve, width in zip(groups, errors, widths, strict=True):
        possible = np.flatnonzero(np.isfinite(curve))
        spread = np.geomspace(1, len(possible), min(_POINTS, len(possible))).round().astype(np.int64) - 1
        shown = sorted({*possible[spread].tolist(), width} & set(possible.tolist()))
        at = tuple(float(curve[k]) for k in shown)
        curves.append(ErrorCurve(group.name, tuple(shown), at, width, float(curve[width])))
    return tuple(curves)


def _measure_activations(walk: SideBySide, groups: Sequence[FoldGroup], progress: Progress) -> Diagnostics:
    view = walk.reference.view
    activations = walk.reference.values.values()
    samples = max((sum(len(part) for part in parts if part.ndim) for parts in activations), default=0)
    layers = {_measured_tensor(view, layer): layer for layer in find_layers(view)}
    first = ((i, m.uses[0].channels) for i, group in enumerate(groups) for m in group.with_role(Role.CONSUMER)[:1])
    seen = lists_by_key((axis.tensor, (i, axis)) for i, axis in first)
    ratios: list[VarianceRatio] = []
    histograms: dict[int, CorrelationHistogram] = {}
    for before, after in walk.steps("compare activations", progress):
        walk.run(before, after)
        for name in before.output:
            if name in layers:
                ratios += _ratio(walk, name, layers[name])
            for i, axis in seen.get(name, ()):
                histograms[i] = _correlations(walk, groups[i], axis)
    return Diagnostics((), tuple(ratios), tuple(histograms[i] for i in sorted(histograms)), samples)


def _measured_tensor(view: GraphView, layer: Layer) -> str:
    """Return the tensor where a layer is looked at: behind its BatchNormalization, or else before its bias."""
    reader = only_reader(view, layer.output)
    return str((layer.node if reader is None or batch_norm(view, reader) is None else reader).output[0])


def _ratio(walk: SideBySide, tensor: str, layer: Layer) -> list[VarianceRatio]:
    """Compare the variances of a layer's channels; nothing for a layer without channels."""
    channel_axis, name = layer.operator.channel_axis, layer.node.name or layer.node.output[0]
    before, after = walk.reference.values[tensor], walk.folded.values[tensor]
    rank = before[0].ndim
    if not -rank <= channel_axis < rank:
        return []
    axis = Axis(tensor, channel_axis % rank)
    old, new = ChannelMoments(before, axis.axis).variance, ChannelMoments(after, axis.axis).variance
    places = _places(walk.plan, axis, len(old))
    compared = (places >= 0) & (old > DEAD**2 * old.max())
    count = int(compared.sum())
    if not count:
        return [VarianceRatio(name, np.nan, np.nan, np.nan, 0, len(old))]
    ratios = new[places[compared]] / old[compared]
    lower, upper = np.quantile(ratios, (0.25, 0.75)).tolist()
    return [VarianceRatio(name, float(ratios.mean()), lower, upper, count, len(old) - count)]


def _places(plan: FoldPlan, axis: Axis, width: int) -> Positions:
    """Return, for every position of an axis before the fold, the position of its channel's cluster; -1: dropped."""
    kept = plan.kept_positions(axis, width)
    places = np.searchsorted(kept, np.arange(width))
    for group, partition in plan.groups_by_axis.get(axis, ()):
        positions = group.tensors[axis]
        clusters = np.searchsorted(kept, positions[partition.representatives])
        places[positions] = np.where(partition.labels[:, None] >= 0, clusters[partition.labels], -1)
    return places


def _correlations(walk: SideBySide, group: FoldGroup, axis: Axis) -> CorrelationHistogram:
    before, after = walk.reference.values[axis.tensor], walk.folded.values[axis.tensor]
    old = group.tensors[axis]
    partition = next((partition for folded, partition in walk.plan if folded is group), None)
    kept = old if partition is None else old[partition.representatives]
    new = np.searchsorted(walk.plan.kept_positions(axis, before[0].shape[axis.axis]), kept)
    return CorrelationHistogram(group.name, _histogram(before, axis.axis, old), _histogram(after, axis.axis, new))


def _histogram(batches: Sequence[Array], axis: int, positions: Positions) -> tuple[int, ...]:
    """Return the number of pairs of channels by correlation; channels that are constant have none."""
    positions = positions[:: -(-len(positions) // _CHANNELS)]
    stride = stride_for(batches, batches[0].shape[axis], max(_CHANNEL_SAMPLES // positions.shape[1], 1))
    samples = np.concatenate([unit_samples(part, axis, positions, stride) for part in batches])
    remove_mean(samples, out=samples)
    deviation = np.sqrt(np.square(samples).mean(axis=0, dtype=np.float64))
    alive = deviation > DEAD * deviation.max()
    scaled = (samples[:, alive] / deviation[alive]).astype(np.float32)
    correlations = (scaled.T @ scaled / len(scaled))[np.triu_indices(scaled.shape[1], 1)]
    counts, _ = np.histogram(correlations.clip(-1.0, 1.0), CORRELATION_BINS, (-1.0, 1.0))
    return tuple(counts.tolist())
