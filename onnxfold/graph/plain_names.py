"""Names that are safe in comments of generated C code."""

import re
from collections.abc import Mapping
from itertools import count

from onnx import AttributeProto, GraphProto, TensorProto, ValueInfoProto

from onnxfold.graph.nodes import all_nodes, subgraphs
from onnxfold.graph.view import GraphView

_FOREIGN = re.compile(r"[^A-Za-z0-9_./:-]")
_LONGEST = 200


def use_plain_names(view: GraphView) -> None:
    """Rename every name that could end a comment, and drop all other texts of a model.

    The generator copies names, producer and documentation into comments as they are: a name that holds the end of a
    comment would become code. Names of letters, digits and ``_ . / : -`` stay.
    """
    graphs = [view.graph, *(body for node in all_nodes(view.graph.node) for body in subgraphs(node))]
    names = dict.fromkeys(view.weights)
    for graph in graphs:
        names |= dict.fromkeys(value.name for value in _values(graph))
        names |= dict.fromkeys(name for node in graph.node for name in (*node.input, *node.output))
    made, used = {"": ""}, set()
    # Plain names first: they stay what they are, whatever others become.
    for name in sorted(filter(None, names), key=lambda name: name != _plain(name)):
        numbered = (f"{_plain(name)}_{number}" if number else _plain(name) for number in count())
        made[name] = next(choice for choice in numbered if choice not in used)
        used.add(made[name])
    for graph in graphs:
        _rename(graph, made)
    view.rename_weights(made.__getitem__)
    model = view.model
    for text in ("producer_name", "producer_version", "domain", "doc_string"):
        model.ClearField(text)
    del model.metadata_props[:]


def _plain(name: str) -> str:
    return _FOREIGN.sub("_", name)[:_LONGEST]


def _values(graph: GraphProto) -> list[ValueInfoProto | TensorProto]:
    return [*graph.input, *graph.output, *graph.value_info, *graph.initializer]


def _rename(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Rename what a graph holds, but for the graphs inside."""
    graph.name = "model"
    graph.ClearField("doc_string")
    del graph.quantization_annotation[:]
    for value in _values(graph):
        value.name = names[value.name]
        value.ClearField("doc_string")
        for dim in value.type.tensor_type.shape.dim if isinstance(value, ValueInfoProto) else ():
            if dim.HasField("dim_param"):
                dim.dim_param = _plain(dim.dim_param)
    for node in graph.node:
        node.input[:] = [names[name] for name in node.input]
        node.output[:] = [names[name] for name in node.output]
        node.name = _plain(node.name)
        node.ClearField("doc_string")
        for attribute in node.attribute:
            attribute.ClearField("doc_string")
            if attribute.type == AttributeProto.TENSOR:
                attribute.t.name = _plain(attribute.t.name)
                attribute.t.ClearField("doc_string")
