"""Read-only memory of a model, and the peak memory of its activations, in bytes.

docs/mathematics.md says how.
"""

from collections.abc import Iterator
from math import prod

import numpy as np
import onnx
from onnx import NodeProto, TensorProto

from onnxfold.budget.costs.lengths import Cost, FoldedAxes, Graphs, Integers, Product, ProductTable, SumCost
from onnxfold.budget.costs.weights import BatchOfOne, graphs_of, used_nodes
from onnxfold.channels.context import Result
from onnxfold.channels.layers import result_of
from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.nodes import attr_int, read_names
from onnxfold.graph.tensors import bits_per_element, constant_value, type_of
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
        products = [p for view, axes in FoldedAxes.of(graphs) for p in _graph(view, axes)]
        super().__init__(graphs, [Product(MODEL_BYTES), *products])


def count_flash(view: GraphView) -> int:
    """Return the bytes of constants and graph structure, see :class:`FlashCost`."""
    return FlashCost([(graph, []) for graph in graphs_of(view)])([])


def vector_bytes(length: int, elem_type: int) -> int:
    """Return the bytes of one more constant vector."""
    return TENSOR_BYTES + length * _item_bytes(elem_type)


def _graph(view: GraphView, axes: FoldedAxes) -> Iterator[Product]:
    nodes = used_nodes(view)
    constants = {name: (view.weight_type(name), tuple(view.weights[name].shape)) for name in view.weights}
    constants |= {n.output[0]: (type_of(v), v.shape) for n in nodes if (v := constant_value(n)) is not None}
    yield Product(TENSOR_BYTES * len(view.input_names))
    read = {*view.output_names, *(name for node in nodes for name in read_names(node))}
    for name, (elem_type, shape) in constants.items():
        if name in read and elem_type not in _INDEX_TYPES:
            yield from _tensor(axes, name, elem_type, shape)
    for node in nodes:
        if node.op_type != "Constant":
            yield Product(OPERATOR_BYTES + TENSOR_BYTES * sum(bool(o) for o in node.output))
        for number, name in enumerate(node.input):
            elem_type, shape = constants.get(name, (TensorProto.UNDEFINED, ()))
            if elem_type not in _INDEX_TYPES:
                continue
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


class RamCost(Cost):
    """Peak bytes of activations as a function of the groups' widths; the module says what is counted."""

    def __init__(self, graphs: Graphs) -> None:
        self._graphs = [_Buffers(view, axes) for view, axes in FoldedAxes.of(graphs)]

    def many(self, widths: Integers) -> Integers:
        """Return the peak bytes, shape (m,), for m choices of widths, shape (m, n_groups)."""
        total: Integers = np.sum([buffers.peak(widths.T) for buffers in self._graphs], axis=0, dtype=np.int64)
        return total


def count_ram(view: GraphView) -> int | None:
    """Return the peak bytes of activations, see :class:`RamCost`; None where a size is not known."""
    try:
        return RamCost([(graph, []) for graph in graphs_of(view)])([])
    except UnsupportedModelError:
        return None


class _Buffers:
    """The buffers of one graph: size in bytes, first and last node that needs each; and their sum over time."""

    def __init__(self, view: GraphView, axes: FoldedAxes) -> None:
        self._view, self._axes, self._sizes = view, axes, BatchOfOne(view)
        nodes = used_nodes(view)
        self._last_reader = {name: i for i, node in enumerate(nodes) for name in read_names(node)}
        self._last_reader.update(dict.fromkeys(view.output_names, len(nodes)))
        self.bytes: list[Product] = []
        self.first: list[int] = []
        self.last: list[int] = []
        self._of: dict[str, int] = {}
        for name in view.input_names:
            self._allocate(name, 0)
        self._caller_owns = len(self.bytes)
        for i, node in enumerate(nodes):
            if node.op_type != "Constant":
                self._run(node, i)
        self._table = ProductTable(self.bytes, axes.group_count)
        spans = enumerate(zip(self.first, self.last, strict=True))
        ends = (event for i, (first, last) in spans for event in ((first, 1, i), (last + 1, -1, i)))
        events = sorted(ends)  # at equal times buffers end (-1) before others begin (+1)
        self._sign = np.array([sign for _, sign, _ in events], np.int64)[:, None]
        self._buffer = np.array([buffer for _, _, buffer in events], np.int64)

    def _run(self, node: NodeProto, i: int) -> None:
        shared = self._shared_buffer(node, i)
        for number, name in enumerate(node.output):
            if number == 0 and shared is not None:
                self._of[name] = shared
                self.last[shared] = max(self.last[shared], self._last_reader.get(name, i))
            elif name and (number == 0 or name in self._last_reader):
                self._allocate(name, i)

    def _allocate(self, name: str, i: int) -> None:
        self._of[name] = len(self.bytes)
        self.bytes.append(self._size(name))
        self.first.append(i)
        self.last.append(self._last_reader.get(name, i))

    def _shared_buffer(self, node: NodeProto, i: int) -> int | None:
        """Return the buffer that a node's result shares with its input; None if it needs a separate one."""
        read = {self._of[name] for name in read_names(node) if name in self._of}
        result = result_of(self._view, node)
        if result is Result.VIEW:
            return self._of.get(node.input[0])
        if result is Result.NEW or len(read) != 1:
            return None
        (buffer,) = read
        overwritable = buffer >= self._caller_owns and self.last[buffer] <= i
        return buffer if overwritable and self.bytes[buffer] == self._size(node.output[0]) else None

    def _size(self, name: str) -> Product:
        lengths = self._axes.lengths(name, self._sizes.shape(name))
        return Product.of(lengths, self._sizes.element_bytes(name))

    def peak(self, widths: Integers) -> Integers:
        """Return the largest sum, shape (m,), for widths of shape (n_groups, m)."""
        changes = self._sign * self._table(widths)[self._buffer]
        peak: Integers = changes.cumsum(axis=0).max(axis=0, initial=0)
        return peak
