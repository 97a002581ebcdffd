"""Networks are matched node by node, from their outputs back to their inputs; names do not matter."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import NodeProto

from onnxfold.channels import ChannelAnalysis
from onnxfold.channels.layers import linear
from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.nodes import DEFAULT_DOMAINS, attribute, node_key
from onnxfold.graph.view import GraphView

#: Operators whose inputs may stand in any order.
_COMMUTATIVE = frozenset(("Add", "Mul", "Max", "Min", "Sum", "Mean"))
#: Attributes that change no value.
_IDLE = frozenset(("storage_order",))


@dataclass(frozen=True, eq=False)
class SourceNetwork:
    """One of the networks that are to be joined."""

    name: str
    view: GraphView
    analysis: ChannelAnalysis  # its fold groups, and its numbers that count channels

    @property
    def width_counts(self) -> set[tuple[str, str | int]]:
        """Node and attribute, or node and number of the input, that depend on the widths."""
        counts = {(c.node, c.attribute or c.input_index) for c in self.analysis.counts}
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
    views = first.view, other.view
    for what, (ours, theirs) in {
        "outputs": tuple(v.output_names for v in views), "inputs": tuple(v.input_names for v in views),
    }.items():  # fmt: skip
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
            if tensors[a] != b and not _same_constant(other.view, tensors[a], b):
                raise LayoutError(f"'{a}' of {first.name} is read where {other.name} reads '{tensors[a]}', and '{b}'")
            continue
        tensors[a] = b
        node, partner = views[0].producer(a), views[1].producer(b)
        if node is None or partner is None:
            _require_same_source(first, other, a, b, inputs, (node, partner))
            continue
        _require_same_node(first, other, node, partner)
        open_pairs += [pair for pair in zip(node.output, partner.output, strict=False) if all(pair)]
        operator = linear(views[0], node)
        for index, pair in enumerate(_input_pairs(node, partner, kinds)):
            if all(pair):
                open_pairs.append(pair)
            elif any(pair):
                if operator is None or operator.bias.number != index:
                    raise _differ(first, other, node, partner, f"only one of them has input {index}")
                lacking.append((1, node_key(partner)) if pair[0] else (0, node_key(node)))
    for a, b in _duplicates({a: b for a, b in tensors.items() if not other.view.is_weight(b)}):
        raise LayoutError(f"'{a}' and '{b}' of {first.name} are one tensor of {other.name}, '{tensors[a]}'")
    return Match(tensors, tuple(lacking))


def _same_constant(view: GraphView, a: str, b: str) -> bool:
    """Whether two weights hold the same: exporters may write one for many."""
    return view.is_weight(a) and view.is_weight(b) and np.array_equal(view.weight(a), view.weight(b))


def _duplicates(tensors: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return pairs of tensors that correspond to the same one."""
    seen: dict[str, str] = {}
    return [(seen[b], a) for a, b in tensors.items() if seen.setdefault(b, a) != a]


def _differ(first: SourceNetwork, other: SourceNetwork, a: NodeProto, b: NodeProto, how: str) -> LayoutError:
    return LayoutError(
        f"the networks have different layouts: {first.label(a)} corresponds to {other.label(b)}, but {how}"
    )


def _require_same_source(
    first: SourceNetwork,
    other: SourceNetwork,
    a: str,
    b: str,
    inputs: Mapping[str, str],
    writers: Sequence[NodeProto | None],
) -> None:
    """Check two tensors of which one at least is an input or a weight."""
    for network, name, writer, theirs in ((first, a, writers[0], other), (other, b, writers[1], first)):
        if writer is not None:
            kind = "a constant" if theirs.view.is_weight(b if network is first else a) else "an input"
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
    if (a.op_type, _domain(a)) != (b.op_type, _domain(b)):
        raise _differ(first, other, a, b, "they are different operators")
    ours, theirs = _attributes(first, a), _attributes(other, b)
    for name in sorted({*ours, *theirs}):
        if ours.get(name) != theirs.get(name):
            how = f"'{name}' is {_plain(ours.get(name))} in one and {_plain(theirs.get(name))} in the other"
            raise _differ(first, other, a, b, how)


def _plain(value: object) -> str:
    return "left out" if value is None else str(value)


def _domain(node: NodeProto) -> str:
    return "" if node.domain in DEFAULT_DOMAINS else node.domain


def _attributes(network: SourceNetwork, node: NodeProto) -> dict[str, object]:
    """Return attributes, those that have their default value or count channels left out."""
    counted = {name for key, name in network.width_counts if key == node_key(node)}
    defaults: dict[str, object] = {}
    try:
        schema = onnx.defs.get_schema(node.op_type, network.view.opset(node.domain), _domain(node))
        defaults = {
            name: onnx.helper.get_attribute_value(attr.default_value)
            for name, attr in schema.attributes.items() if attr.default_value.name
        }  # fmt: skip
    except onnx.defs.SchemaError:
        pass
    attributes = {
        a.name: attribute(node, a.name) for a in node.attribute if a.name not in counted and a.name not in _IDLE
    }
    operator = linear(network.view, node)
    if operator is not None and operator.weight:
        attributes.pop("kernel_shape", None)  # the weight has it
    plain = {name: tuple(v) if isinstance(v, list) else v for name, v in attributes.items()}
    return {n: v for n, v in plain.items() if not (n in defaults and v == defaults[n]) and not _idle(n, v)}


def _idle(name: str, value: object) -> bool:
    """Whether a window has the values that it has when nothing is said."""
    if name in ("pads", "output_padding"):
        return isinstance(value, tuple) and not any(value)
    if name in ("strides", "dilations"):
        return isinstance(value, tuple) and all(v == 1 for v in value)
    return False


def _kinds(network: SourceNetwork) -> dict[str, int]:
    """Return a number per tensor that is equal where equal operators led to it."""
    known: dict[object, int] = {}
    view = network.view
    kinds = {name: hash(("input", i)) for i, name in enumerate(view.input_names)}
    for node in view.nodes:
        inputs = [kinds.get(name, hash(("weight", bool(name)))) for name in node.input]
        if node.op_type in _COMMUTATIVE:
            inputs.sort()
        attributes = tuple(sorted((n, str(v)) for n, v in _attributes(network, node).items()))
        for index, name in enumerate(node.output):
            key = (node.op_type, _domain(node), attributes, tuple(inputs), index)
            kinds[name] = known.setdefault(key, hash(key))
    return kinds


def _input_pairs(a: NodeProto, b: NodeProto, kinds: tuple[dict[str, int], dict[str, int]]) -> list[tuple[str, str]]:
    """Return inputs that correspond; those of a sum in the order of what led to them, if that tells them apart."""
    ours, theirs = list(a.input), list(b.input)
    width = max(len(ours), len(theirs))
    if a.op_type in _COMMUTATIVE and len(ours) == len(theirs):
        of_ours, of_theirs = ([k.get(n, 0) for n in names] for k, names in zip(kinds, (ours, theirs), strict=True))
        if of_ours != of_theirs and sorted(of_ours) == sorted(of_theirs):
            order = sorted(range(width), key=of_theirs.__getitem__)
            places = sorted(range(width), key=of_ours.__getitem__)
            moved = [""] * width
            for place, source in zip(places, order, strict=True):
                moved[place] = theirs[source]
            theirs = moved
    padded = ([*names, *[""] * (width - len(names))] for names in (ours, theirs))
    return list(zip(*padded, strict=True))
