"""Operators that onnxruntime lacks: with them a network can be neither run nor checked."""

from collections.abc import Iterable, Iterator

from onnx import ModelProto, NodeProto

from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.files.wiring import node_label
from onnxfold.graph.nodes import subgraphs
from onnxfold.graph.run import runtime


def require_known_operators(model: ModelProto) -> None:
    """Refuse a model that onnxruntime will not load for an operator, before anything else is done with it."""
    functions = {(function.domain, function.name) for function in model.functions}
    for node in _all_nodes([*model.graph.node, *(n for f in model.functions for n in f.node)]):
        if (node.domain, node.op_type) not in functions and not runtime.runs(node.domain, node.op_type):
            whose = f" of the domain '{node.domain}'" if node.domain else ""
            raise UnsupportedModelError(
                f"{node_label(node)}{whose} is an operator that onnxruntime does not have, so no result can be "
                "checked: --no-verify folds the model by its weights alone"
            )


def _all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    for node in nodes:
        yield node
        for body in subgraphs(node):
            yield from _all_nodes(body.node)
