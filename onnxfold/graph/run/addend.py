"""A model to which something is added in the middle."""

from collections.abc import Mapping

from onnx import NodeProto, helper

from onnxfold.graph.nodes import node_key, rewritten
from onnxfold.graph.view import GraphView


def with_addend(view: GraphView, node: NodeProto) -> tuple[GraphView, str]:
    """Return a copy in which a node adds an input of the model to its first one, and the name of that input.

    The first input of the node is an output of the copy, the last one. It must have a known type, be written by a node,
    and be no output yet.
    """
    copy = view.copy()
    read, kind = node.input[0], view.elem_type(node.input[0])
    name = copy.fresh_name(f"{read}_addend")
    copy.substitute({node_key(node): helper.make_node("Add", [read, name], [node.output[0]], node.name)})
    copy.graph.input.append(helper.make_tensor_value_info(name, kind, None))
    copy.graph.output.append(helper.make_tensor_value_info(read, kind, None))
    return copy, name


def add_behind(view: GraphView, addends: Mapping[str, str]) -> None:
    """Add weights to tensors; the sums take the tensors' names."""
    if not addends:
        return
    nodes = []
    for node in view.nodes:
        fresh = {name: view.fresh_name(f"{name}_without_addend") for name in node.output if name in addends}
        nodes.append(rewritten(node, outputs=[fresh.get(name, name) for name in node.output]) if fresh else node)
        nodes += [
            helper.make_node("Add", [old, addends[name]], [name], f"{name}_addend") for name, old in fresh.items()
        ]
    view.replace_nodes(nodes)
