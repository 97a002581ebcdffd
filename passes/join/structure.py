"""Networks are matched node by node, from their outputs back to their inputs; names do not matter."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import onnx
from onnx import NodeProto, helper

from onnxfold.channels import ChannelAnalysis
from onnxfold.channels.layers import Layer, layer_of, linear
from onnxfold.errors import ConfigError, UnsupportedModelError
from onnxfold.graph.nodes import attribute, canonical_domain, node_key, rewritten
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView

#: Operators whose inputs may stand in any order.
_COMMUTATIVE = frozenset(("Add", "Mul", "Max", "Min", "Sum", "Mean"))
#: Attributes that change no value.
_IDLE = frozenset(("storage_order",))
#: Attributes of a window, and the number that all of theirs are when nothing is said.
_OF_WINDOWS = {"pads": 0, "output_padding": 0, "strides": 1, "dilations": 1}


@dataclass(frozen=True, eq=False)
class SourceNetwork:
    """One of the networks that are to be joined."""

    name: str
    view: GraphView
    analysis: ChannelAnalysis  # its fold groups, and its numbers that count channels

    @property
    def width_counts(self) -> set[tuple[str, str | int]]:
        """Node and attribute, or node and number of the input, that depend on the widths."""
        counts = {(c.node, c.place) for c in self.analysis.counts}
        return counts | {(s.node, s.input_index) for s in self.analysis.selects}

    def label(self, node: NodeProto) -> str:
        """Return how messages call a node."""
        return f"{node.op_type} '{node.name or node_key(node)}' of {self.name}"


class LayoutError(UnsupportedModelError):
    """Networks that are to be joined have different layouts."""


@dataclass(frozen=True, eq=False)
class Match:
    """The tensors of another network that correspond to those of the first."""

    #: Tensor of the first network, the other one's; '' stands for a bias that one of them does not have.
    tensors: Mapping[str, str]
    #: Operators, by network (0 or 1) and key, without the bias that their counterpart has.
    lacks_bias: tuple[tuple[int, str], ...] = ()


def match(first: SourceNetwork, other: SourceNetwork) -> Match:
    """Match two networks, from the outputs, which correspond in their order, back to the inputs."""
    for what, ours, theirs in (
        ("outputs", first.view.output_names, other.view.output_names),
        ("inputs", first.view.input_names, other.view.input_names),
    ):
        if len(ours) != len(theirs):
            raise LayoutError(f"{first.name} has {len(ours)} {what}, and {other.name} has {len(theirs)}")
    inputs = dict(zip(first.view.input_names, other.view.input_names, strict=True))
    kinds = _kinds(first), _kinds(other)
    tensors: dict[str, str] = {}
    lacking: list[tuple[int, str]] = []
    open_pairs = list(zip(first.view.output_names, other.view.output_names, strict=True))[::-1]
    while open_pairs:
        a, b = open_pairs.pop()
        if a in tensors:
            known = [other.view.weight(name) for name in (tensors[a], b) if other.view.is_weight(name)]
            # Exporters may write one constant for many.
            if tensors[a] != b and not (len(known) == 2 and np.array_equal(known[0], known[1])):
                raise LayoutError(f"'{a}' of {first.name} is read where {other.name} reads '{tensors[a]}', and '{b}'")
            continue
        tensors[a] = b
        node, partner = first.view.producer(a), other.view.producer(b)
        if node is None or partner is None:
            _require_same_source(first, other, a, b, inputs)
            continue
        _require_same_node(first, other, node, partner)
        open_pairs += [pair for pair in zip(node.output, partner.output, strict=False) if all(pair)]
        operator = linear(first.view, node)
        for index, pair in enumerate(_input_pairs(node, partner, kinds)):
            if all(pair):
                open_pairs.append(pair)
            elif any(pair):
                if operator is None or operator.bias.number != index:
                    raise _differ(first, other, node, partner, f"only one of them has input {index}")
                lacking.append((1, node_key(partner)) if pair[0] else (0, node_key(node)))
    partners: dict[str, str] = {}
    for a, b in tensors.items():
        if not other.view.is_weight(b) and (twin := partners.setdefault(b, a)) != a:
            raise LayoutError(f"'{twin}' and '{a}' of {first.name} are one tensor of {other.name}, '{b}'")
    return Match(tensors, tuple(lacking))


def _differ(first: SourceNetwork, other: SourceNetwork, a: NodeProto, b: NodeProto, how: str) -> LayoutError:
    return LayoutError(
        f"the networks have different layouts: {first.label(a)} corresponds to {other.label(b)}, but {how}"
    )


def _require_same_source(first: SourceNetwork, other: SourceNetwork, a: str, b: str, inputs: Mapping[str, str]) -> None:
    """Check two tensors of which one at least is an input or a weight."""
    for network, name, theirs, counterpart in ((first, a, other, b), (other, b, first, a)):
        writer = network.view.producer(name)
        if writer is not None:
            kind = "a constant" if theirs.view.is_weight(counterpart) else "an input"
            raise LayoutError(
                f"the networks have different layouts: {network.label(writer)} computes '{name}', which is {kind} in "
                f"{theirs.name}"
            )
    if a in inputs or b in other.view.input_names:
        if inputs.get(a) != b:
            raise LayoutError(f"'{a}' of {first.name} corresponds to '{b}' of {other.name}, which is another input")
        shapes = first.view.shape(a), other.view.shape(b)
        types = first.view.elem_type(a), other.view.elem_type(b)
        if types[0] != types[1] or not _fit(*shapes):
            raise LayoutError(
                f"input '{a}' of {first.name} has the shape {_shape_text(shapes[0])}, and '{b}' of {other.name} "
                f"{_shape_text(shapes[1])}: networks that are merged read the same input"
            )
        return
    ranks = len(first.view.weights[a].shape), len(other.view.weights[b].shape)
    if ranks[0] != ranks[1] or first.view.weight_type(a) != other.view.weight_type(b):
        raise LayoutError(f"weight '{a}' of {first.name} has another rank or type than '{b}' of {other.name}")


def _fit(a: Sequence[int | None] | None, b: Sequence[int | None] | None) -> bool:
    if a is None or b is None:
        return a is b
    return len(a) == len(b) and all(x == y or x is None or y is None for x, y in zip(a, b, strict=True))


def _shape_text(shape: Sequence[int | None] | None) -> str:
    return "unknown" if shape is None else "x".join("?" if d is None else str(d) for d in shape)


def _require_same_node(first: SourceNetwork, other: SourceNetwork, a: NodeProto, b: NodeProto) -> None:
    if (a.op_type, canonical_domain(a.domain)) != (b.op_type, canonical_domain(b.domain)):
        raise _differ(first, other, a, b, "they are different operators")
    ours, theirs = _attributes(first, a), _attributes(other, b)
    for name in sorted({*ours, *theirs}):
        if ours.get(name) != theirs.get(name):
            shown = ("left out" if side.get(name) is None else str(side[name]) for side in (ours, theirs))
            raise _differ(first, other, a, b, f"'{name}' is {' in one and '.join(shown)} in the other")


def _attributes(network: SourceNetwork, node: NodeProto) -> dict[str, object]:
    """Return attributes, those that have their default value or count channels left out."""
    idle = _IDLE | {name for key, name in network.width_counts if key == node_key(node)}
    defaults: dict[str, object] = {}
    with suppress(onnx.defs.SchemaError):
        version, domain = network.view.opset(node.domain), canonical_domain(node.domain)
        known = onnx.defs.get_schema(node.op_type, version, domain).attributes
        stated = {name: attr.default_value for name, attr in known.items() if attr.default_value.name}
        defaults = {name: onnx.helper.get_attribute_value(value) for name, value in stated.items()}
    attributes = {a.name: attribute(node, a.name) for a in node.attribute if a.name not in idle}
    operator = linear(network.view, node)
    if operator is not None and operator.weight:
        attributes.pop("kernel_shape", None)  # the weight has it
    plain = {name: tuple(v) if isinstance(v, list) else v for name, v in attributes.items()}
    silent = {n for n, v in plain.items() if isinstance(v, tuple) and n in _OF_WINDOWS and {*v} <= {_OF_WINDOWS[n]}}
    return {n: v for n, v in plain.items() if n not in silent and not (n in defaults and v == defaults[n])}


def _kinds(network: SourceNetwork) -> dict[str, int]:
    """Return a number per tensor that is equal where equal operators led to it."""
    view = network.view
    kinds = {name: hash(("input", i)) for i, name in enumerate(view.input_names)}
    for node in view.nodes:
        inputs = [kinds.get(name, hash(("weight", bool(name)))) for name in node.input]
        if node.op_type in _COMMUTATIVE:
            inputs.sort()
        attributes = tuple(sorted((n, str(v)) for n, v in _attributes(network, node).items()))
        for index, name in enumerate(node.output):
            kinds[name] = hash((node.op_type, canonical_domain(node.domain), attributes, tuple(inputs), index))
    return kinds


def _input_pairs(a: NodeProto, b: NodeProto, kinds: tuple[dict[str, int], dict[str, int]]) -> list[tuple[str, str]]:
    """Return inputs that correspond; those of a sum in the order of what led to them, if that tells them apart."""
    ours, theirs = list(a.input), list(b.input)
    if a.op_type in _COMMUTATIVE and len(ours) == len(theirs):
        of_ours, of_theirs = ([k.get(n, 0) for n in names] for k, names in zip(kinds, (ours, theirs), strict=True))
        if of_ours != of_theirs and sorted(of_ours) == sorted(of_theirs):
            places, order = (sorted(range(len(ours)), key=of.__getitem__) for of in (of_ours, of_theirs))
            moved = dict(zip(places, order, strict=True))
            theirs = [theirs[moved[place]] for place in range(len(ours))]
    return list(zip_longest(ours, theirs, fillvalue=""))


#: What may become of the outputs. 'auto': their mean where they have one shape, else beside each other.
AUTO, JOIN, AVERAGE, FIRST = HEADS = ("auto", "join", "average", "first")


def join_heads(
    view: GraphView, nodes: Sequence[NodeProto], outputs: Mapping[str, Sequence[str]], heads: str
) -> tuple[list[NodeProto], dict[str, dict[int, int]], tuple[str, ...]]:
    """Join the outputs of networks; return the nodes, new lengths of outputs' axes, and what became of each output."""
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
        layers = [layer for part in parts if (layer := _own_layer(scratch, part, axis)) is not None]
        if len(layers) == len(parts) and len({layer.node.input[0] for layer in layers}) == 1:
            gone = {node_key(layer.node) for layer in layers}
            made = [node for node in made if node_key(node) not in gone]
            made.append(_joined_layer(view, name, layers, chosen))
        elif chosen == JOIN:
            made.append(helper.make_node("Concat", parts, [name], axis=axis, name=f"{name}_joined"))
        elif chosen == AVERAGE:
            made.append(helper.make_node("Mean", parts, [name], name=f"{name}_mean"))
        else:
            made.append(helper.make_node("Identity", parts[:1], [name], name=f"{name}_first"))
    return made, sizes, tuple(how)


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


def _joined_layer(view: GraphView, output: str, layers: Sequence[Layer], how: str) -> NodeProto:
    """Return one layer in place of those that write the networks' outputs of one tensor."""
    first = layers[0]
    weights = [view.weight(layer.operator.weight) for layer in layers]
    inputs = [first.node.input[0], view.add_weight(f"{output}_weight", _combine(weights, how, first.rows.axis))]
    if any(layer.bias for layer in layers):
        biases = [_bias(view, layer) for layer in layers]
        inputs.append(view.add_weight(f"{output}_bias", _combine(biases, how, 0)))
    head = rewritten(first.node, inputs=inputs, outputs=[output])
    head.name = first.node.name.removesuffix("_of_1")
    return head


def _own_layer(scratch: GraphView, output: str, axis: int) -> Layer | None:
    """Return the linear layer that writes an output, where its rows are the classes."""
    layer = layer_of(scratch, scratch.producer(output))
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
