"""Edits of a model's interface: inputs and outputs that go, and others that get new names."""

from collections.abc import Collection, Mapping

from onnx import ModelProto

from onnxfold.graph.nodes import captured_names, node_key
from onnxfold.graph.view import GraphView


def change_interface(view: GraphView, removed: Collection[str], names: Mapping[str, str]) -> bool:
    """Remove inputs and outputs, and rename others; return whether anything changed."""
    if not removed and not names:
        return False
    shapes, learned = dict(view.input_shapes), dict(view.learned_types)
    model = ModelProto()
    model.CopyFrom(view.model)
    graph = model.graph
    for infos in (graph.input, graph.output):
        kept = [info for info in infos if info.name not in removed]
        del infos[:]
        infos.extend(kept)
    known = [info for info in graph.value_info if info.name not in removed]
    del graph.value_info[:]
    graph.value_info.extend(known)
    for info in (*graph.input, *graph.output, *graph.value_info):
        info.name = names.get(info.name, info.name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    view.replace_model(model)
    view.learn({names.get(name, name): kind for name, kind in learned.items() if name not in removed})
    view.assume({names.get(name, name): shape for name, shape in shapes.items() if name not in removed})
    return True


def needed_nodes(view: GraphView, outputs: Collection[str], instead: Mapping[str, Collection[str]]) -> set[str]:
    """Return the keys of the nodes that some outputs depend on."""
    wanted, keys = set(outputs), set()
    for node in reversed(view.nodes):
        key = node_key(node)
        if not wanted.isdisjoint(node.output):
            keys.add(key)
            wanted.update(instead[key] if key in instead else filter(None, [*node.input, *captured_names(node)]))
    return keys
