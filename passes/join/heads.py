"""Heads of joined networks: their outputs beside each other, their mean, or those of the first network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import NodeProto, helper

from onnxfold.channels.layers import Layer, layer_of
from onnxfold.errors import ConfigError
from onnxfold.graph.nodes import node_key, rewritten
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.passes.join.structure import LayoutError

#: What may become of the outputs. 'auto': their mean where they have one shape, else beside each other.
AUTO, JOIN, AVERAGE, FIRST = HEADS = ("auto", "join", "average", "first")


@dataclass(frozen=True, eq=False)
class JoinedHeads:
    """The nodes of a graph with joined heads."""

    nodes: list[NodeProto]
    sizes: dict[str, dict[int, int]] = field(default_factory=dict)  # new lengths of axes of outputs
    how: tuple[str, ...] = ()  # what became of each output


@dataclass(frozen=True)
class _Output:
    """An output of the joined graph: the networks' outputs, how they are joined, and the axis of their classes."""

    name: str
    parts: Sequence[str]
    how: str
    axis: int


def join_heads(
    view: GraphView, nodes: Sequence[NodeProto], outputs: Mapping[str, Sequence[str]], heads: str
) -> JoinedHeads:
    """Join the outputs of networks."""
    made, sizes, how = list(nodes), {}, []
    scratch = view.copy()
    scratch.replace_nodes(nodes)
    for name, parts in outputs.items():
        shapes = [scratch.shape(part) for part in parts]
        axis = _class_axis(shapes)
        lengths = [0 if shape is None else (shape[axis] or 0) for shape in shapes]
        chosen = heads if heads != AUTO else AVERAGE if len(set(shapes)) == 1 else JOIN
        if chosen == AVERAGE and len(set(lengths)) > 1:
            raise ConfigError(
                f"output '{name}' has {' and '.join(map(str, lengths))} entries in the networks: take heads 'join'"
            )
        if chosen == JOIN:
            if 0 in lengths:
                raise LayoutError(f"it is not known how long output '{name}' is: give --input-shapes")
            sizes[name] = {axis: sum(lengths)}
        how.append(chosen)
        made = _join_parts(scratch, view, made, _Output(name, parts, chosen, axis))
    return JoinedHeads(made, sizes, tuple(how))


def _class_axis(shapes: Sequence[Sequence[int | None] | None]) -> int:
    """Return the axis of the classes: that on which the shapes differ, or the second."""
    known = [shape for shape in shapes if shape is not None]
    ranks = {len(shape) for shape in known}
    if len(known) < len(shapes) or len(ranks) != 1:
        raise LayoutError("the outputs of the networks have different or unknown ranks")
    differing = [axis for axis in range(ranks.pop()) if len({shape[axis] for shape in known}) > 1]
    if len(differing) > 1:
        raise LayoutError("the outputs of the networks differ in more than one axis")
    return differing[0] if differing else min(1, len(known[0]) - 1)


def _join_parts(scratch: GraphView, view: GraphView, nodes: list[NodeProto], output: _Output) -> list[NodeProto]:
    layers = [_own_layer(scratch, part, output.axis) for part in output.parts]
    own_layers = [layer for layer in layers if layer is not None]
    if len(own_layers) == len(layers) and len({layer.node.input[0] for layer in own_layers}) == 1:
        first = own_layers[0]
        weights = [view.weight(layer.operator.weight) for layer in own_layers]
        stacked = view.add_weight(f"{output.name}_weight", _combine(weights, output.how, first.rows.axis))
        inputs = [first.node.input[0], stacked]
        biases = [_bias(view, layer) for layer in own_layers]
        if any(np.any(bias) for bias in biases) or any(layer.bias for layer in own_layers):
            inputs.append(view.add_weight(f"{output.name}_bias", _combine(biases, output.how, 0)))
        head = rewritten(first.node, inputs=inputs, outputs=[output.name])
        head.name = first.node.name.removesuffix("_of_1")
        gone = {node_key(layer.node) for layer in own_layers}
        return [*(node for node in nodes if node_key(node) not in gone), head]
    name, parts = output.name, list(output.parts)
    if output.how == JOIN:
        return [*nodes, helper.make_node("Concat", parts, [name], axis=output.axis, name=f"{name}_joined")]
    if output.how == AVERAGE:
        return [*nodes, helper.make_node("Mean", parts, [name], name=f"{name}_mean")]
    return [*nodes, helper.make_node("Identity", parts[:1], [name], name=f"{name}_first")]


def _own_layer(scratch: GraphView, output: str, axis: int) -> Layer | None:
    """Return the linear layer that writes an output, where its rows are the classes."""
    node = scratch.producer(output)
    layer = None if node is None else layer_of(scratch, node)
    if layer is None or layer.last is not layer.node or (layer.has_own_bias and not layer.bias):
        return None
    rank = len(scratch.shape(output) or ())
    first = layer.operator.weight == layer.node.input[1] if len(layer.node.input) > 1 else False
    if not first or layer.operator.channel_axis % max(rank, 1) != axis or layer.rows.blocks > 1:
        return None
    return layer if not scratch.consumers(output) else None


def _bias(view: GraphView, layer: Layer) -> Array:
    weight = view.weight(layer.operator.weight)
    if layer.bias:
        return view.weight(layer.bias).reshape(-1)
    return np.zeros(weight.shape[layer.rows.axis], weight.dtype)


def _combine(values: Sequence[Array], how: str, axis: int) -> Array:
    if how == JOIN:
        return np.concatenate(values, axis=axis)
    if how == FIRST:
        return values[0]
    total = np.sum([v.astype(np.float64) for v in values], axis=0) / len(values)
    return np.asarray(total.astype(values[0].dtype))
