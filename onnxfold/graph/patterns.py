"""Recognition of nodes that follow each other, each the only reader of the one before it."""

from onnx import NodeProto

from onnxfold.graph.nodes import DEFAULT_DOMAINS
from onnxfold.graph.view import GraphView


def only_reader(view: GraphView, tensor: str) -> NodeProto | None:
    """Return the node that alone reads a tensor, None if others do or the graph gives it out."""
    readers = view.consumers(tensor)
    return readers[0] if len(readers) == 1 and tensor not in view.output_names else None


def multiplies_weight(view: GraphView, node: NodeProto) -> bool:
    """Whether a node multiplies an activation by a weight from the right, and does nothing else."""
    return node.op_type == "MatMul" and node.domain in DEFAULT_DOMAINS and view.is_weight(node.input[1])


def chain(view: GraphView, first: NodeProto, *op_types: str) -> list[NodeProto] | None:
    """Return nodes of these operators, of which each alone reads what the one before it writes."""
    nodes: list[NodeProto] = []
    node: NodeProto | None = first
    for op_type in op_types:
        if node is None or node.op_type != op_type:
            return None
        nodes.append(node)
        node = only_reader(view, node.output[0])
    return nodes
