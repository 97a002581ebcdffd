"""Bodies of If, Loop and Scan as separate graphs.

A body is opened as a :class:`~onnxfold.graph.view.GraphView` like any model: its formal inputs, and the
outer activations it captures, are inputs; its results are outputs; so nothing that crosses its border can change.
Weights that it alone reads belong to it wherever they are stored. Closing it writes it back into
the node it came from.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace

from onnx import AttributeProto, ModelProto, helper

from onnxfold.graph.nodes import model_of, node_key, outer_tensors, read_names, refill, rename_tensors, subgraphs
from onnxfold.graph.tensors import LazyTensor, Weight, is_float, proto_of, to_proto
from onnxfold.graph.view import GraphView


@dataclass(eq=False)
class Body:
    """An opened body."""

    view: GraphView
    parent: GraphView  # the graph whose node holds it
    node: str  # first output of that node
    attribute: str  # the attribute that holds the body
    _inputs: int
    _borrowed: frozenset[str]
    _lent: tuple[str, ...]
    _returned: tuple[str, ...] = ()

    def return_weights(self, unread: Mapping[str, Weight]) -> None:
        """Give weights that it does not read any more back to the graph around it, whose node does until it closes."""
        self._returned = tuple(name for name in self._lent if name in unread)
        self._lent = tuple(name for name in self._lent if name not in unread)
        self.parent.take_back({name: unread[name] for name in self._returned})

    def rebind(self, view: GraphView, parent: GraphView) -> "Body":
        """Return the body between copies of its graph and of the graph around it."""
        parent.lend_weights(self._lent, view)
        return replace(self, view=view, parent=parent)

    def close(self) -> None:
        """Write the body, weights included, back into its node."""
        graph = deepcopy(self.view.graph)
        del graph.input[self._inputs :]
        own = ((name, weight) for name, weight in self.view.weights.items() if name not in self._borrowed)
        graph.initializer.extend(proto_of(name, weight) for name, weight in own)
        self.parent.put_body(self.node, self.attribute, graph, self._lent)
        self.parent.remove_weights(self._returned)


def open_bodies(view: GraphView, numbers: Iterator[int] | None = None) -> Iterator[Body]:
    """Open the bodies that a graph holds directly; weights that one body alone reads move into it."""
    readers = _readers(view)
    for node in view.nodes:
        for attr in node.attribute:
            if attr.type == AttributeProto.GRAPH and (numbers is None or next(numbers, None) is not None):
                yield _open(view, node_key(node), attr, readers)


def _open(view: GraphView, node: str, attr: AttributeProto, readers: Counter[str]) -> Body:
    model = ModelProto(ir_version=view.model.ir_version, opset_import=view.model.opset_import)
    model.graph.CopyFrom(attr.g)
    weights: dict[str, Weight] = {t.name: LazyTensor(t) for t in attr.g.initializer}
    del model.graph.initializer[:]
    formal = len(model.graph.input)
    borrowed, moved = {}, []
    for name in outer_tensors(attr.g):
        if view.is_weight(name) and readers[name] == 1:
            moved.append(name)
        elif view.is_weight(name) and not is_float(view.weight_type(name)):
            # Axes, shapes and indices: several bodies read them, none changes them in place.
            borrowed[name] = view.weights[name]
        else:
            model.graph.input.append(helper.make_tensor_value_info(name, view.elem_type(name), view.shape(name)))
    inner = GraphView(model, weights | borrowed, f"{view.namespace}{node}/{attr.name}/")
    view.lend_weights(moved, inner)
    return Body(inner, view, node, attr.name, formal, frozenset(borrowed), tuple(moved))


def _readers(view: GraphView) -> Counter[str]:
    """Count the nodes and bodies that read each tensor."""
    total = Counter(set(view.output_names))
    for node in view.nodes:
        total.update(node.input)
        for body in subgraphs(node):
            total.update(outer_tensors(body))
    return total


def change_interface(view: GraphView, removed: Collection[str], names: Mapping[str, str]) -> bool:
    """Remove inputs and outputs, and rename others; return whether anything changed."""
    if not removed and not names:
        return False
    shapes, learned = view.input_shapes, view.learned_types
    model = deepcopy(view.model)
    graph = model.graph
    for infos in (graph.input, graph.output, graph.value_info):
        refill(infos, (info for info in infos if info.name not in removed))
        for info in infos:
            info.name = names.get(info.name, info.name)
    refill(graph.node, (rename_tensors(node, names) for node in graph.node))
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
            wanted.update(instead[key] if key in instead else read_names(node))
    return keys


def part_of(view: GraphView, tensors: Collection[str]) -> ModelProto:
    """Return a model of what computes some tensors from the inputs of a graph, with the weights of this moment."""
    keys = needed_nodes(view, tensors, {})
    nodes = [node for node in view.nodes if node_key(node) in keys]
    read = dict.fromkeys(name for node in nodes for name in read_names(node))
    inputs = [info for info in view.graph.input if info.name in read and not view.is_weight(info.name)]
    held = [to_proto(name, view.weight(name)) for name in read if view.is_weight(name)]
    model = model_of(nodes, inputs, held, view.model)
    refill(model.graph.output, [info for info in model.graph.output if info.name in tensors])
    return model
