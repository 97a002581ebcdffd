r"""Restore the average mean and deviation of the members of merged channels, on the same inputs.

With a BatchNormalization this is done in its statistics: they are chosen so that what it normalises, u = (y - mean) /
sigma, has the average mean and deviation of its members' u. While the networks run side by side these are the
statistics of the inputs at hand; what is stored translates them back by the ratios that the original shows between its
own statistics and those that it ran with,

    var'  = var_walk  * geometric mean over members of var_own / var_ran
    mean' = mean_walk + mean over members of (mean_own - mean_ran) ;

both are the same where the original ran with its own. Without a BatchNormalization
rows and biases are rescaled.

References
----------
REPAIR: arXiv 2211.08403.
"""

import numpy as np
from onnx import NodeProto

from onnxfold.channels.layers import FUSED_OPS, LINEAR_OPS, batch_norm_epsilon
from onnxfold.graph.axes import from_front, to_front
from onnxfold.graph.nodes import attr_float, attr_int
from onnxfold.graph.tensors import Array, Matrix
from onnxfold.graph.view import GraphView
from onnxfold.passes.merge.axis_map import AxisMap
from onnxfold.passes.repair.side_by_side import SideBySide
from onnxfold.statistics.channel_moments import ChannelMoments
from onnxfold.statistics.observe import DEAD, has_own_statistics

_MAX_GAIN = 10.0


class Restoration:
    """Restores statistics while both networks run.

    Parameters
    ----------
    walk : SideBySide
        The activations so far.
    original : GraphView
        The network before the fold, with the statistics that it is shipped with.
    """

    def __init__(self, walk: SideBySide, original: GraphView) -> None:
        self._walk = walk
        self._original = original
        self._stored: dict[str, Array] = {}

    @property
    def _view(self) -> GraphView:
        return self._walk.folded.view

    def finish(self) -> None:
        """Store the statistics that the original's inputs would show."""
        for name, values in self._stored.items():
            self._view.set_weight(name, values)

    # -- with a BatchNormalization -------------------------------------------------------------

    def batch_norm(self, before: NodeProto, after: NodeProto) -> None:
        """Before a BatchNormalization runs, give the folded one its statistics."""
        if not has_own_statistics(self._original, before):
            return
        x = before.input[0]
        mapped = self._walk.map(x, 1)
        if mapped is None or not self._walk.deviates(before):
            self._borrow(before, after, mapped)
            return
        own_mean, own_sigma = self._statistics(self._original, before)
        ran_mean, ran_sigma = self._statistics(self._walk.reference.view, before)
        now = ChannelMoments(self._walk.folded.values[x], 1)
        eps = batch_norm_epsilon(after)
        seen = ChannelMoments(self._walk.reference.values[x], 1)
        goal_mean = mapped.encoded((seen.mean - ran_mean) / ran_sigma)
        goal_deviation = mapped.encoded(np.sqrt(seen.variance) / ran_sigma)
        deviation = np.sqrt(now.variance)
        alive = (goal_deviation > DEAD) & (deviation > np.finfo(np.float32).tiny)
        merged = np.sqrt(np.maximum(self._view.weight(after.input[4]).astype(np.float64), 0.0) + eps)
        sigma = np.where(alive, deviation / np.where(alive, goal_deviation, 1.0), merged)
        # A deviation below sqrt(epsilon) cannot be had; the mean fits the one that can be.
        sigma = np.maximum(sigma, np.sqrt(eps))
        mean = now.mean - goal_mean * sigma
        back = np.exp(mapped.encoded(np.log(own_sigma / ran_sigma)))
        shift = mapped.encoded(own_mean - ran_mean)
        self._stored[after.input[3]] = mean + shift
        self._stored[after.input[4]] = np.maximum((sigma * back) ** 2 - eps, 0.0)
        self._write(after, mean, sigma, eps)

    def _borrow(self, before: NodeProto, after: NodeProto, mapped: AxisMap | None) -> None:
        """Let a BatchNormalization run with what the original runs with, and store what it has now."""
        own, ran = (self._statistics(v, before) for v in (self._original, self._walk.reference.view))
        if all(map(np.array_equal, own, ran)):
            return
        eps = batch_norm_epsilon(after)
        self._stored.update({n: self._view.weight(n) for n in after.input[3:5]})
        if mapped is not None:
            mean, sigma = (np.asarray(mapped.encoded(values), np.float64) for values in ran)
            self._write(after, mean, sigma, eps)
        else:  # channels do not line up: the statistics of the inputs at hand, which is what the original runs with
            now = ChannelMoments(self._walk.folded.values[before.input[0]], 1)
            self._write(after, now.mean, np.sqrt(now.variance + eps), eps)

    def _write(self, node: NodeProto, mean: Matrix, sigma: Matrix, eps: float) -> None:
        self._view.set_weight(node.input[3], mean)
        self._view.set_weight(node.input[4], np.maximum(sigma**2 - eps, 0.0))

    def _statistics(self, view: GraphView, node: NodeProto) -> tuple[Matrix, Matrix]:
        """Return mean and sigma of a BatchNormalization."""
        mean, variance = (view.weight(n).astype(np.float64) for n in node.input[3:5])
        return mean, np.sqrt(np.maximum(variance, 0.0) + batch_norm_epsilon(node))

    # -- without one ---------------------------------------------------------------------------

    def layer(self, before: NodeProto, after: NodeProto) -> None:
        """Restore mean and deviation after a layer without BatchNormalization."""
        found = self._layer_of(before)
        if found is None:
            return
        layer, axis = found
        output = before.output[0]
        mapped = self._walk.map(output, axis)
        if mapped is None or not self._walk.deviates(before):
            return
        seen = ChannelMoments(self._walk.reference.values[output], axis)
        now = ChannelMoments(self._walk.folded.values[output], axis)
        goal_mean, goal_deviation = mapped.encoded(seen.mean), mapped.encoded(np.sqrt(seen.variance))
        gain = np.ones(len(goal_mean))
        if self._walk.loses(output, axis):
            deviation = np.sqrt(now.variance)
            alive = deviation > np.maximum(DEAD * np.median(deviation), np.finfo(np.float32).tiny)
            gain = np.where(alive, goal_deviation / np.where(alive, deviation, 1.0), 1.0)
            gain = np.clip(gain, 1 / _MAX_GAIN, _MAX_GAIN)
        shift = goal_mean - gain * now.mean
        if self._apply(layer, before, after, gain, shift):
            shape = [1] * self._walk.folded.values[output][0].ndim
            shape[axis] = -1
            a, b = (v.reshape(shape).astype(np.float32) for v in (gain, shift))
            values = self._walk.folded.values
            values[output] = [(a * part + b).astype(part.dtype) for part in values[output]]

    def _layer_of(self, node: NodeProto) -> tuple[NodeProto, int] | None:
        """Return the linear node whose biased output a node writes, and the output's channel axis."""
        view, layer = self._original, node
        if node.op_type == "Add":
            made = [view.producer(i) for i in node.input if not view.is_weight(i)]
            if len(made) != 1 or made[0] is None or made[0].op_type != "MatMul":
                return None
            layer = made[0]
            if len(view.consumers(layer.output[0])) != 1:
                return None
        # Behind a fused activation nothing can be rescaled by rows and biases.
        if layer.op_type not in LINEAR_OPS - FUSED_OPS or len(layer.input) < 2 or not view.is_weight(layer.input[1]):
            return None
        readers = view.consumers(node.output[0])
        if layer is node and node.op_type == "MatMul" and any(r.op_type == "Add" for r in readers):
            return None  # the Add of the bias comes next
        if len(readers) == 1 and has_own_statistics(view, readers[0]):
            return None
        if len(view.consumers(layer.input[1])) > 1 or not self._walk.plan.lossy.members_of(layer.input[1]):
            return None
        rank = self._walk.reference.values[node.output[0]][0].ndim
        return layer, (1 if layer.op_type != "MatMul" else rank - 1)

    def _apply(self, layer: NodeProto, before: NodeProto, after: NodeProto, gain: Matrix, shift: Matrix) -> bool:
        """Scale the rows of a layer and correct its bias so that its output becomes gain * y + shift."""
        beta = attr_float(layer, "beta", 1.0) if layer.op_type == "Gemm" else 1.0
        if beta == 0.0:
            return False
        bias = self._bias_of(layer, before, after, len(gain))
        if bias is None:
            return False
        weight, w_axis, blocks = self._output_axis(layer)
        front = np.array(to_front(self._view.weight(weight), w_axis, blocks))
        if len(front) != len(gain):
            return False
        front *= gain.reshape(-1, *[1] * (front.ndim - 1)).astype(front.dtype)
        self._view.set_weight(weight, np.ascontiguousarray(from_front(front, w_axis, blocks)))
        old: Array = self._view.weight(bias)
        flat = old.reshape(-1).astype(np.float64) * gain + shift / beta
        self._view.set_weight(bias, flat.reshape(old.shape))
        return True

    def _bias_of(self, layer: NodeProto, before: NodeProto, after: NodeProto, width: int) -> str | None:
        """Return the name of a layer's bias vector in the folded network, adding one where an operator takes it."""
        view = self._view
        if before.op_type == "Add":
            names = [i for i in after.input if view.is_weight(i)]
            fits = len(names) == 1 and view.weight_size(names[0]) == width
            return names[0] if fits else None
        if layer.op_type == "MatMul":
            return None
        if len(after.input) > 2 and after.input[2]:
            name = after.input[2]
            return name if view.is_weight(name) and view.weight_size(name) == width else None
        name = view.add_weight(f"{after.output[0]}_bias", np.zeros(width, view.weight(after.input[1]).dtype))
        view.append_input(after, name)
        return name

    def _output_axis(self, layer: NodeProto) -> tuple[str, int, int]:
        """Return the weight of a layer and its output axis."""
        weight = layer.input[1]
        if layer.op_type == "Conv":
            return weight, 0, 1
        if layer.op_type == "ConvTranspose":
            return weight, 1, attr_int(layer, "group", 1)
        if layer.op_type == "Gemm":
            return weight, 0 if attr_int(layer, "transB", 0) else 1, 1
        return weight, len(self._original.weights[weight].shape) - 1, 1
