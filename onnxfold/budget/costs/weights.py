"""The cost model of weights, and the shapes, nodes and graphs that all cost models count."""

from math import prod

import onnx
from onnx import NodeProto, inliner

from onnxfold.budget.costs.lengths import FoldedAxes, Graphs, Product, SumCost
from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.bodies import needed_nodes, open_bodies
from onnxfold.graph.nodes import all_nodes, dequantized_tensors, node_key, read_names, scales, subgraphs
from onnxfold.graph.tensors import Shape, bits_per_element, constant_value, is_float, type_of
from onnxfold.graph.view import GraphView

#: The length that a free dimension of an input has where none is given; networks are run at it, but for images.
FREE_DIMENSION = 64


class BatchOfOne:
    """Dimensions and element types of every tensor where the open leading dimension of each input is one.

    A batch that the model fixes stays: it is what the model runs. Other open dimensions of inputs stay open, or are
    closed to their usual length.
    """

    def __init__(self, view: GraphView, *, is_closed: bool = False) -> None:
        self._view, free = view, FREE_DIMENSION if is_closed else None
        shapes = {name: view.shape(name) for name in view.input_names}
        known = {name: (shape[0] or 1, *(d or free for d in shape[1:])) for name, shape in shapes.items() if shape}
        closed = {name: shape for name, shape in known.items() if None not in shape}
        differs = any(shapes[name] != shape for name, shape in closed.items())
        self._types = view.types_for(closed if differs else {})

    def shape(self, tensor: str, *, any_leading: bool = False) -> tuple[int, ...]:
        """Return the dimensions of a tensor."""
        kind = self._types.get(tensor)
        shape = self._view.shape(tensor) if self._view.is_weight(tensor) else kind and kind[1]
        if shape and shape[0] is None:
            node = self._view.producer(tensor)
            # Bodies of an If that were opened tell no batch from inside.
            if any_leading or (node is not None and node.op_type == "If"):
                shape = (1, *shape[1:])
        if shape is None or None in shape:
            raise UnsupportedModelError(self._complaint(tensor, shape))
        return tuple(d for d in shape if d is not None)

    def element_bytes(self, tensor: str) -> int:
        """Return the bytes of one element of an activation, one for types of less than a byte."""
        elem_type = self._types.get(tensor, (0, (), ()))[0]
        if not elem_type:
            raise UnsupportedModelError(
                f"the element type of tensor '{tensor}' is not known: no budget can be computed"
            )
        return max(1, bits_per_element(onnx.helper.tensor_dtype_to_np_dtype(elem_type)) // 8)

    def _complaint(self, tensor: str, shape: Shape | None) -> str:
        dims = "rank unknown" if shape is None else ", ".join("?" if d is None else str(d) for d in shape)
        problem = f"the size of tensor '{tensor}' ({dims}) is not known, so no budget can be computed"
        for name in self._view.input_names:
            input_shape = self._view.shape(name)
            if input_shape is not None and None in input_shape[1:]:
                example = ",".join("128" if d is None else str(d) for d in ((input_shape[0] or 1), *input_shape[1:]))
                return f"{problem}: fix the free sizes of all inputs, as in --input-shapes {name}:{example}"
        return (
            f"{problem}: shape inference does not find it; fix the shapes in the model, or give another kind of budget"
        )


def common_batch(view: GraphView) -> int:
    """Return the batch a model is fixed to: the leading dimension that all its inputs and outputs share, else one."""
    shapes = [view.shape(name) for name in (*view.input_names, *view.output_names)]
    leading = {shape[0] for shape in shapes if shape}
    return (leading.pop() or 1) if len(leading) == 1 else 1


def graphs_of(view: GraphView) -> list[GraphView]:
    """Return a model's main graph, functions inlined, and the bodies of its If, Loop and Scan nodes.

    The view itself stays as it is.
    """
    functions = bool(view.model.functions)
    if not functions and not any(True for node in view.nodes for _ in subgraphs(node)):
        return [view]
    copy = view.copy()
    if functions:
        copy.replace_model(inliner.inline_local_functions(copy.model))
    return _open_graphs(copy)


def _open_graphs(view: GraphView) -> list[GraphView]:
    return [view, *(graph for body in list(open_bodies(view)) for graph in _open_graphs(body.view))]


class WeightCost(SumCost):
    """Parameters as a function of the groups' widths.

    Copies that normalisation made of shared vectors count, although equal ones are shared again after the fold.
    """

    def __init__(self, graphs: Graphs) -> None:
        products = [
            Product.of(axes.lengths(name, view.weights[name].shape))
            for view, axes in FoldedAxes.of(graphs)
            for name in weight_names(view)
        ]
        super().__init__(graphs, products)


def used_nodes(view: GraphView) -> list[NodeProto]:
    """Return the nodes that an output depends on, in the order of the graph."""
    needed = needed_nodes(view, view.output_names, {})
    return [node for node in view.nodes if node_key(node) in needed]


def weight_names(view: GraphView) -> list[str]:
    """Return the initializers that are weights: floats, and integers that a DequantizeLinear makes floats of.

    The scales of quantised tensors are none.
    """
    integers, no_weights = dequantized_tensors(view.nodes), scales(view.nodes)
    return [n for n in view.weights if n in integers or (is_float(view.weight_type(n)) and n not in no_weights)]


def count_parameters(view: GraphView) -> int:
    """Return the number of weights a model really uses.

    Float initializers and Constant nodes that an output depends on, those of subgraphs included, each
    counted once. Integers behind a DequantizeLinear count as the floats that they stand for, their scales do not:
    quantised, a model has as many weights as before.
    """
    nodes = used_nodes(view)
    needed = {*view.output_names, *(name for node in nodes for name in read_names(node))}
    total = sum(view.weight_size(n) for n in weight_names(view) if n in needed)
    for node in all_nodes([*nodes, *(node for function in view.model.functions for node in function.node)]):
        value = constant_value(node)
        total += value.size if value is not None and is_float(type_of(value)) else 0
        for body in subgraphs(node):
            integers, no_weights = dequantized_tensors(body.node), scales(body.node)
            floats = {t.name for t in body.initializer if is_float(t.data_type)} - no_weights
            total += sum(prod(t.dims) for t in body.initializer if t.name in floats | integers)
    return total
