"""Nodes with other names of tensors."""

from collections.abc import Mapping

from onnx import NodeProto

from onnxfold.graph.nodes import subgraphs


def rename_tensors(node: NodeProto, names: Mapping[str, str]) -> NodeProto:
    """Return a node that reads and writes other names, bodies included."""
    made = NodeProto()
    made.CopyFrom(node)
    made.input[:] = [names.get(name, name) for name in node.input]
    made.output[:] = [names.get(name, name) for name in node.output]
    for body in subgraphs(made):
        own = {v.name for v in (*body.input, *body.initializer)} | {o for inner in body.node for o in inner.output}
        outer = {old: new for old, new in names.items() if old not in own}
        inner_nodes = [rename_tensors(inner, outer) for inner in body.node]
        del body.node[:]
        body.node.extend(inner_nodes)
        for output in body.output:
            output.name = outer.get(output.name, output.name)
    return made
