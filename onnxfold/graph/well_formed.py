"""What everything behind :func:`onnxfold.graph.load.load` takes for granted about a file.

Cheaper than onnx's checker, which needs the weights, and more lenient: it lets pass what onnxruntime understands and
onnx does not, such as operators of other vendors in the default domain.
"""

import numpy as np
from onnx import GraphProto, NodeProto, defs, helper

from onnxfold.graph.tensors import LazyTensor, bits_per_element
from onnxfold.graph.view import DEFAULT_DOMAINS, subgraphs


def nodes_problem(graph: GraphProto, opset: int) -> str:
    """Return what is wrong with the nodes of a graph and of the bodies inside it, '' if nothing is."""
    for node in graph.node:
        problem = _node_problem(node, opset)
        problem = problem or next(filter(None, (nodes_problem(body, opset) for body in subgraphs(node))), "")
        if problem:
            return problem
    return ""


def _node_problem(node: NodeProto, opset: int) -> str:
    names = [node.name, node.op_type, node.domain, *node.input, *node.output, *(a.name for a in node.attribute)]
    if not all(isinstance(name, str) for name in names):
        return "a node has a name that is no text"
    label = f"node '{node.name or next(iter(node.output), '')}' ({node.op_type})"
    if not any(node.output):
        return f"{label} has no output"
    if node.domain not in DEFAULT_DOMAINS:
        return ""
    try:
        required = defs.get_schema(node.op_type, opset, "").min_input
    except defs.SchemaError:
        return ""
    missing = next((i for i in range(required) if i >= len(node.input) or not node.input[i]), None)
    return "" if missing is None else f"{label} has no input {missing}, which it needs"


def payload_fits(weight: LazyTensor) -> bool:
    """Whether a tensor's payload, or the note of where it lies, has the form that its type and shape ask for."""
    proto = weight.proto
    if any(d < 0 for d in proto.dims):
        return False
    try:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(proto.data_type))
        field = helper.tensor_dtype_to_field(proto.data_type)
    except KeyError:
        return False
    bits = bits_per_element(dtype)
    expected = -(-weight.size * bits // 8)
    if weight.is_external:
        entries = {e.key: e.value for e in proto.external_data}
        offset, length = entries.get("offset", "0"), entries.get("length", str(expected))
        return dtype.kind != "O" and _is_count(offset) and _is_count(length) and int(length) == expected
    if proto.HasField("raw_data"):
        return dtype.kind != "O" and len(proto.raw_data) == expected
    stored, per_element = len(getattr(proto, field)), 2 if dtype.kind == "c" else 1
    return stored == weight.size * per_element or (bits < 8 and stored == expected)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit()
