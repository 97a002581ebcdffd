"""Evaluation of the part of a graph that does not depend on its inputs."""

import contextlib
import io
import logging
from collections.abc import Sequence

import onnx
import onnx_graphsurgeon as gs
from onnx import NodeProto, helper

from onnxfold.graph.shapes.footprint import GROWING, tensor_bytes
from onnxfold.graph.tensors import Array, to_proto
from onnxfold.graph.view import GraphView

_LOGGER = logging.getLogger(__name__)


def result_bytes(view: GraphView, node: NodeProto) -> int | None:
    """Return the bytes of a node's results, counted from shapes; None where they may be of any size."""
    read = sum(_bytes(view, name) or 0 for name in node.input if name)
    sizes = [_bytes(view, name) for name in node.output if name]
    if None in sizes and node.op_type in GROWING:
        return None
    return sum(8 * read if size is None else size for size in sizes)


def _bytes(view: GraphView, name: str) -> int | None:
    return tensor_bytes((view.elem_type(name), view.shape(name) or (), ())) if view.shape(name) is not None else None


def evaluate(view: GraphView, nodes: Sequence[NodeProto], limit_bytes: int) -> dict[str, Array]:
    """Compute the outputs of nodes whose inputs are all weights, or outputs of earlier ones of them.

    Notes
    -----
    Only these nodes pass through onnx-graphsurgeon, in a graph of their own: it drops what it does not
    model (metadata, functions, unknown attributes) and would do so for the whole network.
    """
    made = dict.fromkeys(o for n in nodes for o in n.output if o)  # in order: files must not depend on hashing
    inputs = dict.fromkeys(i for n in nodes for i in n.input if i and i not in made)
    graph = helper.make_graph(
        list(nodes),
        "constants",
        [],
        [helper.make_empty_tensor_value_info(o) for o in made],
        [to_proto(name, view.weight(name)) for name in inputs],
    )
    model = helper.make_model(graph, opset_imports=list(view.model.opset_import), ir_version=view.model.ir_version)
    model = onnx.shape_inference.infer_shapes(model)
    surgeon = gs.import_onnx(model)
    with contextlib.redirect_stdout(io.StringIO()) as chatter:
        surgeon.fold_constants(size_threshold=limit_bytes, error_ok=True)
    if chatter.getvalue():
        _LOGGER.debug("onnx-graphsurgeon: %s", chatter.getvalue().strip())
    tensors = surgeon.tensors()
    return {name: tensors[name].values for name in made if isinstance(tensors.get(name), gs.Constant)}
