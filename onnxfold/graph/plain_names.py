"""Names that are safe in comments of generated C code."""

import re
from collections.abc import Callable, Iterable

from onnx import AttributeProto, GraphProto, NodeProto

from onnxfold.graph.nodes import subgraphs
from onnxfold.graph.view import GraphView

_FOREIGN = re.compile(r"[^A-Za-z0-9_./:-]")
_LONGEST = 200


def use_plain_names(view: GraphView) -> None:
    """Rename every name that could end a comment, and drop all other texts of a model.

    The generator copies names, producer and documentation into comments as they are: a name that holds the end of a
    comment would become code. Names of letters, digits and ``_ . / : -`` stay.
    """
    made: dict[str, str] = {}
    names: set[str] = set()

    def plain(name: str) -> str:
        if name and name not in made:
            stem = _FOREIGN.sub("_", name)[:_LONGEST]
            candidate, number = stem, 0
            while candidate in names:
                number += 1
                candidate = f"{stem}_{number}"
            names.add(candidate)
            made[name] = candidate
        return made.get(name, "")

    # Plain names first: they stay what they are, whatever others become.
    for name in _names(view):
        if name == _FOREIGN.sub("_", name)[:_LONGEST]:
            plain(name)
    _rename(view.graph, plain)
    view.rename_weights(plain)
    model = view.model
    for text in ("producer_name", "producer_version", "domain", "doc_string"):
        model.ClearField(text)
    del model.metadata_props[:]


def _names(view: GraphView) -> Iterable[str]:
    yield from view.weights
    yield from _graph_names(view.graph)


def _graph_names(graph: GraphProto) -> Iterable[str]:
    for value in (*graph.input, *graph.output, *graph.initializer):
        yield value.name
    for node in graph.node:
        yield from (*node.input, *node.output)
        for body in subgraphs(node):
            yield from _graph_names(body)


def _rename(graph: GraphProto, plain: Callable[[str], str]) -> None:
    graph.name = "model"
    graph.ClearField("doc_string")
    del graph.quantization_annotation[:]
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = plain(value.name)
        value.ClearField("doc_string")
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                dim.dim_param = _FOREIGN.sub("_", dim.dim_param)[:_LONGEST]
    for node in graph.node:
        _rename_node(node, plain)


def _rename_node(node: NodeProto, plain: Callable[[str], str]) -> None:
    node.input[:] = [plain(name) for name in node.input]
    node.output[:] = [plain(name) for name in node.output]
    node.name = _FOREIGN.sub("_", node.name)[:_LONGEST]
    node.ClearField("doc_string")
    for attribute in node.attribute:
        attribute.ClearField("doc_string")
        if attribute.type == AttributeProto.TENSOR:
            attribute.t.name = _FOREIGN.sub("_", attribute.t.name)[:_LONGEST]
            attribute.t.ClearField("doc_string")
    for body in subgraphs(node):
        _rename(body, plain)
