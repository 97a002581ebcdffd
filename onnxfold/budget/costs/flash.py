"""Read-only memory of a model, in bytes.

Counted are all constants that an output depends on, with their real element types, and a fixed allowance for the
structure of the graph: what a TensorFlow Lite FlatBuffer spends on operators, tensors, names and headers. The allowance
depends on the numbers of nodes and tensors only, hence not on widths. Float constants count once, however many nodes
read them; integer constants (shapes, axes, indices) once per reader, since a fold may have to tell them apart.
The code of the runtime is not in it: a device profile takes it off the memory that is usable.
"""

from collections.abc import Iterator
from math import prod

import onnx
from onnx import NodeProto, TensorProto

from onnxfold.budget.costs.lengths import FoldedAxes, Graphs, Product, SumCost, group_count, number_groups
from onnxfold.budget.costs.weights import graphs_of, used_nodes
from onnxfold.graph.nodes import attr_int, captured_names
from onnxfold.graph.tensors import bits_per_element
from onnxfold.graph.view import GraphView

#: Bytes of structure per model, per operator and per tensor. Assumption, rounded up from what float TFLite files of
#: small networks take beyond their weights.
MODEL_BYTES = 1024
OPERATOR_BYTES = 128
TENSOR_BYTES = 128

_INDEX_TYPES = frozenset({TensorProto.INT64, TensorProto.INT32})


class FlashCost(SumCost):
    """Bytes of constants and graph structure as a function of the groups' widths; the module says what is counted.

    Copies that normalisation made of shared vectors count, although equal ones are shared again after the fold.
    """

    def __init__(self, graphs: Graphs) -> None:
        products = [p for view, axes in number_groups(graphs) for p in _graph(view, axes)]
        super().__init__([Product(MODEL_BYTES), *products], group_count(graphs))


def count_flash(view: GraphView) -> int:
    """Return the bytes of constants and graph structure, see :class:`FlashCost`."""
    return FlashCost([(graph, []) for graph in graphs_of(view)])([])


def vector_bytes(length: int, elem_type: int) -> int:
    """Return the bytes of one more constant vector."""
    return TENSOR_BYTES + length * _item_bytes(elem_type)


def _graph(view: GraphView, axes: FoldedAxes) -> Iterator[Product]:
    nodes = used_nodes(view)
    constants = {name: (view.weight_type(name), tuple(view.weights[name].shape)) for name in view.weights}
    constants |= {n.output[0]: constant for n in nodes if (constant := _constant(n)) is not None}
    yield Product(TENSOR_BYTES * len(view.input_names))
    indices, others = [], dict.fromkeys(view.output_names)
    for node in nodes:
        others.update(dict.fromkeys(captured_names(node)))
        if node.op_type == "Constant":
            continue
        yield Product(OPERATOR_BYTES + TENSOR_BYTES * sum(bool(o) for o in node.output))
        for number, name in enumerate(node.input):
            if name in constants and constants[name][0] in _INDEX_TYPES:
                indices.append((node, number, name))
            else:
                others[name] = None
    for name in others:
        if name in constants and constants[name][0] not in _INDEX_TYPES:
            yield from _tensor(axes, name, *constants[name])
    for node, number, name in indices:
        elem_type, shape = constants[name]
        result = view.shape(node.output[0]) if node.op_type == "Gather" and number == 1 else None
        if result is None:
            yield from _tensor(axes, name, elem_type, shape)
        else:  # one position per channel that is gathered
            axis = attr_int(node, "axis", 0) % (len(result) - len(shape) + 1)
            lengths = axes.lengths(node.output[0], [d or 0 for d in result])[axis : axis + len(shape)]
            yield from (Product(TENSOR_BYTES), Product.of(lengths, _item_bytes(elem_type)))


def _tensor(axes: FoldedAxes, name: str, elem_type: int, shape: tuple[int, ...]) -> Iterator[Product]:
    yield Product(TENSOR_BYTES)
    bits = bits_per_element(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
    if bits < 8:  # several elements in a byte; such tensors are never folded
        yield Product(-(-prod(shape) * bits // 8))
    else:
        yield Product.of(axes.lengths(name, shape), bits // 8)


def _item_bytes(elem_type: int) -> int:
    return int(onnx.helper.tensor_dtype_to_np_dtype(elem_type).itemsize)


def _constant(node: NodeProto) -> tuple[int, tuple[int, ...]] | None:
    """Return element type and shape of a Constant node."""
    if node.op_type == "Constant":
        for attr in node.attribute:
            if attr.name == "value":
                return attr.t.data_type, tuple(attr.t.dims)
            if attr.name in ("value_float", "value_int"):
                return (TensorProto.FLOAT if attr.name == "value_float" else TensorProto.INT64), ()
            if attr.name in ("value_floats", "value_ints"):
                size = len(attr.floats) + len(attr.ints)
                return (TensorProto.FLOAT if attr.name == "value_floats" else TensorProto.INT64), (size,)
    return None
