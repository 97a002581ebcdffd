"""Restore the average mean and deviation of the members of merged channels, on the same inputs.

docs/mathematics.md, "Restored statistics", has the formulas.
Sources: arXiv 2502.10216, arXiv 2211.08403.
"""

import numpy as np
from onnx import NodeProto

from onnxfold.channels.declarations import Axis, BatchNorm
from onnxfold.channels.group import move_from_front, move_to_front
from onnxfold.channels.layers import Layer, bias_of, find_layers, is_rescalable, linear, own_statistics
from onnxfold.graph.nodes import node_key
from onnxfold.graph.tensors import Array, Matrix
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import PassResult
from onnxfold.passes.merge.fold_channels import AxisMap
from onnxfold.passes.repair.side_by_side import ObservedRepair, SideBySide
from onnxfold.statistics.moments import ChannelCorrelations, ChannelMoments
from onnxfold.statistics.observe import DEAD, held_variance
from onnxfold.statistics.samples import stride_for, unit_samples

_MAX_GAIN = 10.0
#: Correlations below this are not told apart from none.
_LEAST_KNOWN = 0.05
#: Enough positions for a correlation: more are thinned out evenly.
_MAX_SAMPLES = 25_000


class Restoration:
    """Restores statistics while both networks run."""

    def __init__(self, walk: SideBySide, original: GraphView, doubt: float = 0.0) -> None:
        self._walk, self._original, self._doubt = walk, original, doubt
        self._view = walk.folded.view
        self._stored: dict[str, Array] = {}
        lossy = walk.plan.lossy
        #: Layers whose weight the fold merged, and that take a bias, by the node that writes their result.
        self._layers = {
            node_key(layer.last): layer
            for layer in find_layers(original)
            if layer.rows.tensor in lossy.members
            and (layer.bias or layer.lacks_bias)
            and is_rescalable(original, layer)
        }

    def finish(self) -> None:
        """Store the statistics that the original's inputs would show."""
        for name, values in self._stored.items():
            self._view.set_weight(name, values)

    def batch_norm(self, before: NodeProto) -> None:
        """Before a BatchNormalization runs, give the folded one its statistics."""
        norm = own_statistics(self._original, before)
        if norm is None:
            return
        x = before.input[0]
        mapped = self._walk.map(x, 1)
        own, ran = (_statistics(v, norm) for v in (self._original, self._walk.reference.view))
        matched = not all(map(np.array_equal, own, ran))
        if mapped is None or not self._walk.deviates(before):
            if matched:
                self._borrow(norm, x, mapped, ran)
            return
        (own_mean, own_sigma), (ran_mean, ran_sigma) = own, ran
        now = ChannelMoments(self._walk.folded.values[x], 1)
        seen = ChannelMoments(self._walk.reference.values[x], 1)
        goal_mean = mapped.encode_samples((seen.mean - ran_mean) / ran_sigma)
        goal_deviation = mapped.encode_samples(np.sqrt(seen.variance) / ran_sigma)
        known = self._moments(x, mapped) if matched or self._doubt else None
        if known is not None:
            goal_deviation *= np.clip(known.correlations, _LEAST_KNOWN, 1.0) ** self._doubt
        deviation = np.sqrt(now.variance)
        alive = (goal_deviation > DEAD) & (deviation > np.finfo(np.float32).tiny)
        _, merged = _statistics(self._view, norm)
        sigma = np.where(alive, deviation / np.where(alive, goal_deviation, 1.0), merged)
        # A deviation below sqrt(epsilon) cannot be had; the mean fits the one that can be.
        sigma = np.maximum(sigma, np.sqrt(norm.epsilon))
        mean = now.mean - goal_mean * sigma
        self._stored[norm.mean], stored = mean, sigma**2
        if known is not None:
            # Only the part of a channel that follows its members has other statistics on the original's inputs.
            ratio = np.exp(mapped.encode_samples(np.log(own_sigma / ran_sigma)))
            self._stored[norm.mean] = mean + known.slopes * mapped.encode_samples(own_mean - ran_mean)
            stored = stored * (1.0 + known.correlations**2 * (ratio**2 - 1.0))
        self._stored[norm.variance] = held_variance(self._view, norm, stored - norm.epsilon)
        self._write(norm, mean, sigma)

    def _moments(self, tensor: str, mapped: AxisMap) -> ChannelCorrelations:
        """Return how every channel of the folded network goes with the average of its members."""
        moments = ChannelCorrelations(mapped.folded_positions.size)
        was, is_now = self._walk.reference.values[tensor], self._walk.folded.values[tensor]
        width, folded = was[0].shape[1], is_now[0].shape[1]
        stride = stride_for(was, width, _MAX_SAMPLES)
        for a, b in zip(was, is_now, strict=True):
            members = unit_samples(a, 1, np.arange(width)[:, None], stride)
            moments.add(mapped.encode_samples(members), unit_samples(b, 1, np.arange(folded)[:, None], stride))
        return moments

    def _borrow(self, norm: BatchNorm, x: str, mapped: AxisMap | None, ran: tuple[Matrix, Matrix]) -> None:
        """Let a BatchNormalization run with what the original runs with, and store what it has now."""
        self._stored.update({n: self._view.weight(n) for n in (norm.mean, norm.variance)})
        if mapped is not None:
            mean, sigma = (np.asarray(mapped.encode_samples(values), np.float64) for values in ran)
            self._write(norm, mean, sigma)
        else:  # channels do not line up: the statistics of the inputs at hand, which is what the original runs with
            now = ChannelMoments(self._walk.folded.values[x], 1)
            self._write(norm, now.mean, np.sqrt(now.variance + norm.epsilon))

    def _write(self, norm: BatchNorm, mean: Matrix, sigma: Matrix) -> None:
        self._view.set_weight(norm.mean, mean)
        self._view.set_weight(norm.variance, held_variance(self._view, norm, sigma**2 - norm.epsilon))

    def ends_layer(self, node: NodeProto) -> bool:
        """Whether a node writes the result of a layer that may be restored."""
        return node_key(node) in self._layers

    def layer(self, before: NodeProto) -> None:
        """Restore mean and deviation behind a layer that no BatchNormalization follows."""
        layer = self._layers.get(node_key(before))
        if layer is None:
            return
        output = layer.output
        axis = layer.operator.channel_axis % self._walk.reference.values[output][0].ndim
        mapped = self._walk.map(output, axis)
        if mapped is None or not self._walk.deviates(before):
            return
        seen = ChannelMoments(self._walk.reference.values[output], axis)
        now = ChannelMoments(self._walk.folded.values[output], axis)
        goal_mean, goal_deviation = mapped.encode_samples(seen.mean), mapped.encode_samples(np.sqrt(seen.variance))
        gain = np.ones(len(goal_mean))
        if self._walk.plan.lossy.touches(Axis(output, axis)) and not mapped.rotates:
            deviation = np.sqrt(now.variance)
            alive = deviation > np.maximum(DEAD * np.median(deviation), np.finfo(np.float32).tiny)
            gain = np.where(alive, goal_deviation / np.where(alive, deviation, 1.0), 1.0)
            gain = np.clip(gain, 1 / _MAX_GAIN, _MAX_GAIN)
        shift = goal_mean - gain * now.mean
        if self._apply(layer, gain, shift):
            others = tuple(i for i in range(self._walk.folded.values[output][0].ndim) if i != axis)
            a, b = (np.expand_dims(v, others).astype(np.float32) for v in (gain, shift))
            self._walk.folded.change(output, lambda part: (a * part + b).astype(part.dtype))

    def _apply(self, layer: Layer, gain: Matrix, shift: Matrix) -> bool:
        """Scale the rows of a layer and correct its bias so that its result becomes gain * y + shift."""
        factor = layer.operator.bias.factor if layer.last is layer.node else 1.0
        bias = bias_of(self._view, layer, len(gain)) if factor != 0.0 else None
        if bias is None:
            return False
        folded = linear(self._view, self._view.producer(layer.node.output[0]))
        if folded is None or folded.rows is None:
            return False
        rows = folded.rows  # of as many groups as the fold left
        front = move_to_front(self._view.weight(rows.tensor), rows.axis, rows.blocks)
        if len(front) != len(gain):
            return False
        scaled = front * gain.reshape(-1, *[1] * (front.ndim - 1)).astype(front.dtype)
        self._view.set_weight(rows.tensor, np.ascontiguousarray(move_from_front(scaled, rows.axis, rows.blocks)))
        old: Array = self._view.weight(bias)
        flat = old.reshape(-1).astype(np.float64) * gain + shift / factor
        self._view.set_weight(bias, flat.reshape(old.shape))
        return True


def _statistics(view: GraphView, norm: BatchNorm) -> tuple[Matrix, Matrix]:
    mean, variance = (view.weight(n).astype(np.float64) for n in (norm.mean, norm.variance))
    return mean, np.sqrt(np.maximum(variance, 0.0) + norm.epsilon)


class Recalibrate(ObservedRepair):
    """Take statistics from inputs."""

    def run(self, view: GraphView) -> PassResult:
        """Run both networks once."""
        seen = self.observation
        # A fresh reference: where the networks are equal, both keep the statistics that they are shipped with.
        reference = self.original.copy()
        matches = seen.rules.matches
        walk = SideBySide(reference, view, self.plan, seen.inputs, matches="deviating" if matches else "nothing")
        restoration = Restoration(walk, self.original)
        for before, after in walk.steps("recalibrate", self.progress, restoration.ends_layer):
            norm = own_statistics(self.original, before)
            if norm is not None and walk.deviates(before):
                moments = ChannelMoments(walk.folded.values[after.input[0]], 1)
                view.set_weight(norm.mean, moments.mean)
                view.set_weight(norm.variance, held_variance(view, norm, moments.variance))
            walk.run(before, after)
            restoration.layer(before)
        restoration.finish()
        return PassResult(modified=bool(self.plan.groups))
