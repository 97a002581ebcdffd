"""Nodes of a graph as protobuf messages: their keys, attributes, bodies, and the outer names that bodies read."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from types import MappingProxyType
from typing import Any

import onnx
from google.protobuf.message import Message
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

DEFAULT_DOMAINS = ("", "ai.onnx")


def canonical_domain(domain: str) -> str:
    """Return a domain under its only name: that of ONNX's own operators is written in two ways."""
    return "" if domain in DEFAULT_DOMAINS else domain


def node_key(node: NodeProto) -> str:
    """Return the output that names a node uniquely: its first one, or the first that is not left out."""
    return next(filter(None, node.output), "")


def attribute(node: NodeProto, name: str, default: object = None) -> object:
    """Return an attribute's value, `default` where the node does not have it."""
    return next((onnx.helper.get_attribute_value(attr) for attr in node.attribute if attr.name == name), default)


def attr_int(node: NodeProto, name: str, default: int) -> int:
    """Return an integer attribute."""
    return int(attribute(node, name, default))  # type: ignore[call-overload, no-any-return]


def attr_ints(node: NodeProto, name: str, default: Iterable[int] = ()) -> list[int]:
    """Return an integer list attribute."""
    return [int(v) for v in attribute(node, name, default)]  # type: ignore[attr-defined]


def attr_float(node: NodeProto, name: str, default: float) -> float:
    """Return a float attribute."""
    return float(attribute(node, name, default))  # type: ignore[arg-type]


def refill(field: Any, messages: Iterable[Any]) -> None:
    """Put messages in place of all those of a repeated field."""
    kept = list(messages)
    del field[:]
    field.extend(kept)


def rewritten(
    node: NodeProto, *, inputs: Sequence[str] | None = None, outputs: Sequence[str] | None = None,
    attributes: Mapping[str, object] = MappingProxyType({}), without: Collection[str] = (), op_type: str = "",
) -> NodeProto:  # fmt: skip
    """Return a node that differs from another one in some respects; another operator is one of ONNX."""
    made = deepcopy(node)
    if op_type:
        made.op_type, made.domain = op_type, ""
    if inputs is not None:
        made.input[:] = inputs
    if outputs is not None:
        made.output[:] = outputs
    if without:
        refill(made.attribute, (attr for attr in made.attribute if attr.name not in without))
    for name, value in attributes.items():
        attr = next((attr for attr in made.attribute if attr.name == name), None) or made.attribute.add()
        attr.CopyFrom(onnx.helper.make_attribute(name, value, attr.doc_string))
    return made


def with_input(node: NodeProto, index: int, tensor: str) -> NodeProto:
    """Return a node that reads another tensor at one place."""
    return rewritten(node, inputs=[*node.input[:index], tensor, *node.input[index + 1 :]])


def messages(message: Message) -> Iterator[Message]:
    """Yield a message and all that are inside it, at any depth."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in (value,) if isinstance(value, Message) else value:
                yield from messages(inner)


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the graphs held in a node's attributes (bodies of If, Loop, Scan)."""
    for attr in node.attribute:
        if attr.type == AttributeProto.GRAPH:
            yield attr.g
        elif attr.type == AttributeProto.GRAPHS:
            yield from attr.graphs


def all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield nodes, each followed by those of its bodies."""
    for node in nodes:
        yield node
        for body in subgraphs(node):
            yield from all_nodes(body.node)


def model_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Yield the nodes of a model and of its functions, each followed by those of its bodies."""
    return all_nodes((*model.graph.node, *(node for function in model.functions for node in function.node)))


def model_of(
    nodes: Sequence[NodeProto], inputs: Sequence[ValueInfoProto], held: Sequence[TensorProto], like: ModelProto
) -> ModelProto:
    """Return a model of some nodes alone, which gives out all that they write, with the operator sets of another one.

    Its inputs come first, then the weights that it holds.
    """
    written = dict.fromkeys(name for node in nodes for name in node.output if name)
    outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in written]
    graph = onnx.helper.make_graph(nodes, "nodes", inputs, outputs, held)
    return onnx.helper.make_model(graph, opset_imports=like.opset_import, ir_version=like.ir_version)


def rename_tensors(node: NodeProto, names: Mapping[str, str]) -> NodeProto:
    """Return a node that reads and writes other names, bodies included."""
    made = deepcopy(node)
    made.input[:] = [names.get(name, name) for name in node.input]
    made.output[:] = [names.get(name, name) for name in node.output]
    for body in subgraphs(made):
        own = _own_tensors(body)
        outer = {old: new for old, new in names.items() if old not in own}
        refill(body.node, (rename_tensors(inner, outer) for inner in body.node))
        for output in body.output:
            output.name = outer.get(output.name, output.name)
    return made


def captured_names(node: NodeProto) -> list[str]:
    """Return the outer tensors that a node's subgraphs read, in order, each once."""
    return list(dict.fromkeys(name for graph in subgraphs(node) for name in outer_tensors(graph)))


def read_names(node: NodeProto) -> list[str]:
    """Return the tensors that a node reads, those inside its bodies included, each once."""
    return [name for name in dict.fromkeys([*node.input, *captured_names(node)]) if name]


def reached_nodes(nodes: Iterable[NodeProto], tensors: Iterable[str]) -> Iterator[NodeProto]:
    """Yield those of some nodes, in the order of a graph, that depend on any of some tensors."""
    reached = set(tensors)
    for node in nodes:
        if not reached.isdisjoint(read_names(node)):
            reached.update(filter(None, node.output))
            yield node


def outer_tensors(graph: GraphProto) -> list[str]:
    """Return the outer tensors that a body reads, in order, each once."""
    read = (*(name for inner in graph.node for name in read_names(inner)), *(out.name for out in graph.output))
    own = _own_tensors(graph)
    return [name for name in dict.fromkeys(read) if name not in own]


def _own_tensors(graph: GraphProto) -> set[str]:
    """Return the tensors of a body itself, those of bodies inside aside."""
    return {v.name for v in (*graph.input, *graph.initializer)} | {o for node in graph.node for o in node.output}


#: Products of activations with matrices of integers.
_PRODUCTS = frozenset({"MatMulInteger", "DynamicQuantizeMatMul", "MatMulNBits", "QAttention", "DynamicQuantizeLSTM"})
#: Operators of a graph that is quantised, besides those whose names begin with QLinear.
_QUANTIZED = _PRODUCTS | {
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "ConvInteger", "MatMulIntegerToFloat", "QGemm",
}  # fmt: skip
#: The operators of a pair that rounds and bounds activations.
QDQ = ("QuantizeLinear", "DequantizeLinear")
#: Positions of the inputs that are integers which stand for floats, and of those that are scales.
_FACTORS = {"MatMulInteger": slice(2), "ConvInteger": slice(2), "DynamicQuantizeLSTM": slice(1, 3)}
_SCALES = {**dict.fromkeys(QDQ, (1,)), "DynamicQuantizeLSTM": (8, 10)}


def is_quantized(node: NodeProto) -> bool:
    """Whether a node quantises, dequantises, or computes on what is quantised."""
    return node.op_type in _QUANTIZED or node.op_type.startswith("QLinear")


def integer_factors(node: NodeProto) -> list[str]:
    """Return inputs of a node among which are matrices of integers that it multiplies, which no rule declares."""
    return list(node.input[_FACTORS.get(node.op_type, slice(None))]) if node.op_type in _PRODUCTS else []


def dequantized_tensors(nodes: Iterable[NodeProto]) -> set[str]:
    """Return the tensors whose integers stand for floats.

    They are what a DequantizeLinear dequantises, of looked-up rows the table, and factors of integer products.
    """
    nodes = list(nodes)
    tensors = {node.input[0] for node in nodes if node.op_type == "DequantizeLinear" and node.input}
    for node in nodes:
        if node.op_type in _FACTORS:
            tensors.update(node.input[_FACTORS[node.op_type]])
        elif node.op_type == "Gather" and node.output[0] in tensors:
            tensors.add(node.input[0])
    return tensors


def scales(nodes: Iterable[NodeProto]) -> set[str]:
    """Return the tensors that are scales of quantised ones and nothing else.

    They say how numbers are stored, and are no weights of the model. QuantizeLinear and DequantizeLinear read them, an
    LSTM of integers, and of an integer product the Mul with the scale that its activation was just given.
    """
    nodes = list(nodes)
    activation_scales = {node.output[1] for node in nodes if node.op_type == "DynamicQuantizeLinear"}
    used_as_scale: set[str] = set()
    used_otherwise: set[str] = set()
    for node in nodes:
        joins = node.op_type == "Mul" and not activation_scales.isdisjoint(node.input)
        for i, name in enumerate(node.input):
            is_scale = joins or i in _SCALES.get(node.op_type, ())
            (used_as_scale if is_scale else used_otherwise).add(name)
    return used_as_scale - used_otherwise
