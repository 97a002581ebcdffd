"""A model to which something is added in the middle."""

from onnx import NodeProto, helper

from onnxfold.graph.nodes import node_key
from onnxfold.graph.view import GraphView


def with_addend(view: GraphView, node: NodeProto) -> tuple[GraphView, str]:
    """Return a copy in which a node adds an input of the model to its first one, and the name of that input.

    The first input of the node is an output of the copy, the last one. It must have a known type, be written by a node,
    and be no output yet.

    Parameters
    ----------
    view : GraphView
        The graph, which stays as it is.
    node : NodeProto
        A node that hands its first input on as it is.
    """
    copy = view.copy()
    read, kind = node.input[0], view.elem_type(node.input[0])
    name = copy.fresh_name(f"{read}_addend")
    copy.substitute({node_key(node): helper.make_node("Add", [read, name], [node.output[0]], node.name)})
    copy.graph.input.append(helper.make_tensor_value_info(name, kind, None))
    copy.graph.output.append(helper.make_tensor_value_info(read, kind, None))
    return copy, name
