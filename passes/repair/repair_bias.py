r"""Give consumers, as a bias, the mean of what a fold takes from them (FLAP).

A consumer f, linear in what it reads, reads x in the original network, and Q P x behind a fold that keeps P x. What it
lacks on average is

    f((I - Q P) E x) - f(0) ,

which is added to its bias; for a selection, the mean of the channels that are dropped. It is taken from the original
network alone, so every group is repaired as if nothing else was folded. f is run on one sample of it and averaged over
the positions of the result: a convolution's padding takes part as it does in the network. Where an operator takes no
bias, an Add is put behind it.

Where channels are dropped, the fold keeps P x, and the mean comes back. Where they are averaged before an activation
function, it keeps what that function makes of the averages, and the mean comes back only in part.

References
----------
An et al., "Fluctuation-based Adaptive Structured Pruning for Large Language Models", arXiv 2312.11983, section 3.3.
"""

from collections.abc import Iterable
from functools import partial

import numpy as np

from onnxfold.channels.declarations import Axis, Role
from onnxfold.channels.group import lists_by_key
from onnxfold.channels.layers import Layer, bias_of, layer_of, own_statistics
from onnxfold.graph.nodes import node_key
from onnxfold.graph.run.node_runner import NodeRunner, add_behind
from onnxfold.graph.tensors import Array, Matrix
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import PassResult
from onnxfold.passes.merge.fold_channels import axis_map
from onnxfold.passes.repair.side_by_side import ObservedRepair
from onnxfold.statistics.activations import Activations
from onnxfold.statistics.moments import ChannelMoments
from onnxfold.statistics.observe import match_statistics


class RepairBias(ObservedRepair):
    """Add to biases what is lost on average."""

    def run(self, view: GraphView) -> PassResult:
        """Run the original once, and correct the fold."""
        lost = self._layer_deficits()
        behind: dict[str, str] = {}
        for layer, mean in lost:
            self._correct(view, layer, mean, behind)
        add_behind(view, behind)
        return PassResult(modified=bool(lost))

    def _layer_deficits(self) -> list[tuple[Layer, Matrix]]:
        """Return the layers that read folded channels, and what they lack, per channel of the fold."""
        consumers = [member for group in self.plan.lossy.groups for member in group.with_role(Role.CONSUMER)]
        reads = lists_by_key((use.node, use.channels) for member in consumers for use in member.uses)
        reference, matches = self.observation.reference, self.observation.is_to_match
        walk = Activations(reference, self.observation.inputs)
        looked_at = {key: {axis.tensor for axis in axes} for key, axes in reads.items()}
        last = max((i for i, node in enumerate(reference.nodes) if node_key(node) in reads), default=-1)
        for node in reference.nodes[: last + 1] if matches else ():
            if own_statistics(reference, node) is not None:
                looked_at.setdefault(node_key(node), set()).add(node.input[0])
        losses = []
        for node in walk.walk(looked_at, partial(self.progress, "biases")):
            layer = layer_of(self.original, node) if node_key(node) in reads else None
            if layer is not None:
                mean = self._mean_deficit(walk, layer, reads[node_key(node)])
                losses += [] if mean is None else [(layer, mean)]
            if matches:
                match_statistics(walk, node)
            walk.run(node)
        return losses

    def _mean_deficit(self, walk: Activations, layer: Layer, axes: Iterable[Axis]) -> Matrix | None:
        """Return the mean deficit of a layer that is about to run, shape (folded channels,)."""
        node, feeds = layer.node, {}
        for axis in axes:
            if axis.tensor not in walk.values:
                return None
            values = walk.values[axis.tensor]
            mean = ChannelMoments(values, axis.axis).mean
            mapped = axis_map(self.plan, axis, len(mean))
            if mapped is None:
                return None
            lost = np.zeros_like(mean)
            for places in mapped.positions.T:
                lost[places] = mean[places] - mapped.decode @ (mapped.encode @ mean[places])
            sample = values[0] if axis.axis == 0 else values[0][:1]
            along = np.expand_dims(lost, tuple(i for i in range(sample.ndim) if i != axis.axis))
            feeds[axis.tensor] = np.broadcast_to(along, sample.shape).astype(sample.dtype)
        runner = NodeRunner(walk.view, node, walk.sessions)
        if set(runner.inputs) != set(feeds):
            return None
        scaled = ({name: np.ascontiguousarray(part * scale) for name, part in feeds.items()} for scale in (1, 0))
        with_lost, without = (runner.run(values)[node.output[0]] for values in scaled)
        change: Array = with_lost.astype(np.float64) - without
        at = layer.operator.channel_axis % change.ndim
        by_channel = change.mean(axis=tuple(i for i in range(change.ndim) if i != at))
        rows = axis_map(self.plan, Axis(node.output[0], at), len(by_channel))
        return None if rows is None else np.asarray(rows.encode_samples(by_channel), np.float64)

    def _correct(self, view: GraphView, layer: Layer, mean: Matrix, behind: dict[str, str]) -> None:
        """Add a mean to the bias of a layer, or note what is to be added behind it."""
        factor = layer.operator.bias.factor if layer.last is layer.node else 1.0
        shared = bool(layer.bias) and len(self.original.consumers(layer.bias)) > 1
        bias = bias_of(view, layer, len(mean)) if factor != 0.0 and not shared else None
        if bias is not None:
            old = view.weight(bias)
            view.set_weight(bias, (old.astype(np.float64) + (mean / factor).reshape(old.shape)).astype(old.dtype))
            return
        shape = view.shape(layer.output)
        axis = layer.operator.channel_axis
        from_end = -axis if axis < 0 else (0 if shape is None else len(shape) - axis)
        if from_end > 0:
            values = mean.reshape(-1, *[1] * (from_end - 1)).astype(view.weight(layer.rows.tensor).dtype)
            behind[layer.output] = view.add_weight(f"{layer.output}_bias", values)
