"""Observation of a network on inputs: the second moments of what its consumers read, see docs/mathematics.md.

**Matched BatchNormalization.** Inputs that only look like data have other statistics than the data had. The
network is then run with the statistics of these inputs in every BatchNormalization: what leaves a
normalisation has its true mean and variance, beta and gamma^2, and only the correlations come from the inputs.

A channel may lie on several places of an axis (the dimensions of a head, the positions of a Flatten). Covariances take
all of them together; scores of channels that come from the pruning of single weights do not.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
from onnx import NodeProto, helper

from onnxfold.channels.declarations import Axis, BatchNorm, Positions, Role
from onnxfold.channels.group import FoldGroup, Member, lists_by_key, rows_of
from onnxfold.channels.layers import own_statistics, takes_mean
from onnxfold.graph.nodes import node_key
from onnxfold.graph.tensors import HALF_TYPES, Array, Matrix, largest_float
from onnxfold.graph.view import GraphView
from onnxfold.machine import memory
from onnxfold.progress import Progress, silent
from onnxfold.statistics import samples
from onnxfold.statistics.activations import Activations, Batches, StagedBatches
from onnxfold.statistics.moments import ChannelMoments, Classes, Doubt, SplitMoments, intensity, shrink_covariance
from onnxfold.statistics.samples import row_parts


@dataclass(frozen=True, eq=False)
class Places:
    """Every field has the shape (n_units, r)."""

    mean: Matrix
    variance: Matrix
    absolute: Matrix  # sums of |w| and of w^2 over the consumer's weights for it
    squared: Matrix


def places_of(view: GraphView, member: Member, positions: Positions, read: ChannelMoments) -> Places:
    """Return the places of a group's units."""
    columns = rows_of(view, member).astype(np.float64)
    absolute, squared = np.abs(columns).sum(axis=2), np.square(columns).sum(axis=2)
    mean, variance = read.mean[positions], read.variance[positions]
    if absolute.shape != mean.shape:  # places of the weight are not those of the activation
        mean, variance = mean.mean(axis=1, keepdims=True), (variance + mean**2).mean(axis=1, keepdims=True)
        variance -= mean**2
        absolute, squared = (part.sum(axis=1, keepdims=True) for part in (absolute, squared))
    return Places(mean, variance, absolute, squared)


#: Enough samples per covariance; more positions than this are thinned out evenly.
MAX_SAMPLES = 100_000
#: A channel whose deviation on these inputs is this much smaller than the others' is dead on them.
DEAD = 1e-3


@dataclass(frozen=True)
class FitRules:
    """How a fit on inputs weights, doubts and follows what they show; made where inputs are made."""

    matches: bool = False  # whether BatchNormalizations take the statistics of these inputs, which are not the data's
    shrinks: bool = False  # whether covariances are shrunk, see :mod:`onnxfold.statistics.moments`
    doubt: Doubt = field(default_factory=Doubt)  # how far the inputs may differ from data
    #: Whether positions count by their length, see :mod:`onnxfold.statistics.samples`, and repairs look at every group
    #: as if nothing else was folded.
    by_length: bool = False


@dataclass(frozen=True, eq=False)
class ConsumerMoments:
    """Moments of the activations that one consumer of a group reads."""

    covariance: Matrix  # C, of the activations, as the samples have it
    #: G, of the weight's columns; in the type it was computed in, which of wide layers takes half the memory.
    gram: Array
    shrinkage: float = 0.0  # the part of C that is not relied on, see :mod:`onnxfold.statistics.moments`
    doubt: Doubt = field(default_factory=Doubt)  # how far the inputs may differ from data
    duplicates: Classes | None = None  # classes of exact duplicates
    has_bias: bool = True  # whether a bias takes what means change; if not, C is about zero
    places: Places | None = None  # moments and weights place by place, where requested

    @cached_property
    def trusted(self) -> Matrix:
        """C, shrunk."""
        if not self.shrinkage:
            return self.covariance
        return shrink_covariance(self.covariance, self.shrinkage, self.duplicates, level=self.doubt.of_variances)

    @property
    def energy(self) -> float:
        """Variance of the consumer's output, trace(G C), C shrunk; NaN or infinite where activations overflow."""
        with np.errstate(invalid="ignore", over="ignore"):
            return sum(float((self.gram[rows] * self.trusted[rows]).sum()) for rows in row_parts(len(self.gram)))


@dataclass(frozen=True, eq=False)
class Observation:
    """A network observed on inputs."""

    reference: GraphView  # the network; where statistics were matched, with those of the inputs
    inputs: Batches | StagedBatches
    rules: FitRules = FitRules()
    is_to_match: bool = False  # whether statistics of the reference are still to be matched to the inputs


@dataclass(frozen=True)
class Observing:
    """How a network is observed."""

    rules: FitRules = FitRules()
    duplicates: Sequence[Classes] = ()  # classes of exact duplicates of every group
    by_place: bool = False  # whether moments are taken place by place, too
    make_room: Callable[[int], None] | None = None  # called before moments of so many channels are computed


#: Takes the number of a group and its moments as soon as all its consumers were met; they are not kept then.
Take = Callable[[int, list[ConsumerMoments]], None]


def observe(
    view: GraphView, groups: Sequence[FoldGroup], inputs: Batches | StagedBatches, take: Take,
    how: Observing = Observing(), progress: Progress = silent,
) -> Observation:  # fmt: skip
    """Run a network once."""
    reference = view.copy()
    activations = Activations(reference, inputs)
    consumers = lists_by_key(
        (use.node, (i, member, use.channels))
        for i, group in enumerate(groups)
        for member in (*group.with_role(Role.CONSUMER), *group.scoring)
        for use in member.uses
    )
    moments_of_groups: list[list[ConsumerMoments]] = [[] for _ in groups]
    covariances: list[dict[tuple[Axis, bool], tuple[Matrix, float]]] = [{} for _ in groups]

    def see(node: NodeProto, read: Iterable[tuple[int, Member, Axis]]) -> None:
        for i, member, channels in read:
            if channels.tensor not in activations.values:
                continue
            has_bias = takes_mean(reference, node)
            known, key = covariances[i], (channels, has_bias)
            if key not in known:
                if how.make_room is not None:
                    how.make_room(groups[i].size)
                known[key] = _covariance(activations, channels, groups[i], how.rules, has_bias=has_bias)
            covariance, shrinkage = known[key]
            alike = how.duplicates[i] if how.duplicates else None
            columns, places = rows_of(reference, member).reshape(groups[i].size, -1), None
            gram: Array = columns @ columns.T
            if how.by_place:
                along = ChannelMoments(activations.values[channels.tensor], channels.axis)
                places = places_of(reference, member, groups[i].tensors[channels], along)
            moments_of_groups[i].append(
                ConsumerMoments(covariance, gram, shrinkage, how.rules.doubt, alike, has_bias, places)
            )

    last = {j: key for key in map(node_key, reference.nodes) for j, _, _ in consumers.get(key, ())}
    ends = lists_by_key((key, j) for j, key in last.items())  # groups by the node that is the last to read them
    # What the last consumer writes, and what comes behind it, tells nothing: of a language model, a third of the work.
    looked_at = {key: {channels.tensor for _, _, channels in uses} for key, uses in consumers.items()}
    if how.rules.matches:
        for node in reference.nodes:
            if own_statistics(reference, node) is not None:
                looked_at.setdefault(node_key(node), set()).add(node.input[0])
    for node in activations.walk(looked_at, partial(progress, "observe activations")):
        read = consumers.get(node_key(node), ())
        see(node, (use for use in read if use[2].tensor not in node.output))
        if how.rules.matches:
            match_statistics(activations, node)
        activations.run(node)
        see(node, (use for use in read if use[2].tensor in node.output))  # a recurrence reads what it wrote
        for j in ends.get(node_key(node), ()):
            covariances[j].clear()
            moments, moments_of_groups[j] = moments_of_groups[j], []
            take(j, moments)
            del moments
    return Observation(reference, inputs, how.rules)


def match_statistics(activations: Activations, node: NodeProto) -> None:
    """Replace the running statistics of a BatchNormalization by those of what it is about to read.

    Channels that are dead on these inputs keep theirs. Nothing is done for other nodes, and in half floats, whose range
    networks leave with other statistics than their own.
    """
    view, norm = activations.view, own_statistics(activations.view, node)
    if norm is None or view.weight_type(norm.variance) in HALF_TYPES:
        return
    moments = ChannelMoments(activations.values[node.input[0]], 1)
    variance = view.weight(norm.variance).astype(np.float64)
    ratio = moments.variance / (np.maximum(variance, 0.0) + norm.epsilon)
    alive = ratio > DEAD**2 * np.median(ratio)
    typical = np.sqrt(np.median(ratio[alive])) if alive.any() else 1.0
    own = np.where(alive, moments.variance - norm.epsilon, variance * typical**2)
    view.set_weight(norm.mean, moments.mean)
    view.set_weight(norm.variance, held_variance(view, norm, own))


def held_variance(view: GraphView, norm: BatchNorm, variance: Array) -> Array:
    """Return variances as the type of their weight holds them: a float16 none above 65,504."""
    return np.clip(variance, 0.0, largest_float(helper.tensor_dtype_to_np_dtype(view.weight_type(norm.variance))))


def _covariance(
    activations: Activations, channels: Axis, group: FoldGroup, rules: FitRules, *, has_bias: bool
) -> tuple[Matrix, float]:
    """Return the covariance of an activation, about zero if no bias takes its mean, and its shrinkage."""
    batches, positions = activations.values[channels.tensor], group.tensors[channels]
    stride = samples.stride_for(batches, len(positions), MAX_SAMPLES)
    n = len(positions)
    memory.require(6 * memory.array_bytes((n, n), 8), f"the covariance of the {n:,} channels of group '{group.name}'")

    def read() -> Iterator[samples.Samples]:
        return (samples.unit_samples(values, channels.axis, positions, stride) for values in batches)

    def with_factors() -> Iterator[samples.Batch]:
        return (((batch,), samples.length_factors(batch)) for batch in read())

    weighted = (batch for (batch,) in samples.weighted_batches(with_factors, centre=has_bias))
    moments = SplitMoments(weighted if rules.by_length else read(), n)
    noise = moments.noise()
    whole = moments.join()
    covariance = whole.covariance_in_place()
    if rules.by_length or not has_bias:
        for rows in row_parts(n):
            covariance[rows] += np.outer(whole.mean_x[rows], whole.mean_x)
    return covariance, intensity(noise, whole.count, covariance, rules.doubt.part) if rules.shrinks else 0.0
