"""Registry of converters, and the view that one has of its node: shapes, constants, tensors in a layout."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from onnx import NodeProto

from onnxfold.errors import ExportError
from onnxfold.export.tflite.calculator import Calculator
from onnxfold.export.tflite.graph import ELEMENT_TYPES, Graph, Value
from onnxfold.export.tflite.layout import Layout, LayoutRule, Shape, plain
from onnxfold.graph.registry import NodeReader, OperatorRegistry
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView

#: Reading constants up to this many elements at once is cheap; larger ones are read when they are written.
_SMALL = 4096


class Tensors:
    """The TFLite values of ONNX tensors, in every layout in which they exist so far."""

    def __init__(self, view: GraphView, shapes: Mapping[str, Shape], layouts: Mapping[str, Layout]) -> None:
        self.view = view
        self.graph = Graph()
        self.shapes = shapes
        self.layouts = layouts
        self._values: dict[str, dict[Layout, Value]] = {}
        self._named: set[int] = set()

    def name(self, value: Value, tensor: str) -> None:
        """Call a value by an ONNX name, unless it is a constant or is called by another one."""
        if not value.is_constant and id(value) not in self._named:
            self._named.add(id(value))
            value.name = tensor

    def rename(self, value: Value, tensor: str) -> None:
        """Call a value by the name that the model's interface has for it."""
        self._named.add(id(value))
        value.name = tensor

    def put(self, tensor: str, value: Value, layout: Layout) -> None:
        """Say what an activation is; in its planned layout it has its ONNX name."""
        self._values.setdefault(tensor, {})[layout] = value

    def get(self, tensor: str, layout: Layout) -> Value:
        """Return an activation in a layout, transposed if it does not exist in it yet."""
        known = self._values[tensor]
        if layout not in known:
            source = self.layouts[tensor] if self.layouts[tensor] in known else next(iter(known))
            known[layout] = self._convert(known[source], source, layout)
        return known[layout]

    def _convert(self, value: Value, source: Layout, wanted: Layout) -> Value:
        if source.block:
            batch = value.shape[:1]
            image = self.graph.reshape(value, (*batch, *source.block[1:], source.block[0]))
            rank = len(source.block) + 1
            image = self.graph.transpose(image, (0, rank - 1, *range(1, rank - 1)))
            return self._convert(self.graph.reshape(image, value.shape), plain(2), wanted)
        if wanted.block:
            batch = value.shape[:1]
            image = self.graph.reshape(value, (*batch, *wanted.block))
            image = self.graph.transpose(image, (0, *range(2, len(wanted.block) + 1), 1))
            return self.graph.reshape(image, value.shape)
        return self.graph.transpose(value, [source.perm.index(p) for p in wanted.perm])


class Op(NodeReader):
    """One node and the graph that it is written to."""

    def __init__(self, node: NodeProto, tensors: Tensors) -> None:
        super().__init__(tensors.view, node)
        self._tensors = tensors
        self.graph = tensors.graph
        self.calc = Calculator(tensors.graph)

    def refuse(self, reason: str) -> NoReturn:
        """Raise the error that names this node."""
        raise ExportError(reason, node=self.name, op_type=self.op_type)

    # -- reading -------------------------------------------------------------------------------

    def required_weight(self, index: int, what: str) -> Array:
        """Return the values of an input that has to be a weight; `what` it is, for the error."""
        values = self.constant(index)
        if values is None:
            self.refuse(f"its {what} is computed at run time: TFLite needs it as a constant")
        return values

    def numbers(self, index: int, name: str, what: str) -> list[int] | None:
        """Return integers given as an attribute (older operator sets) or as a constant input; None if not given."""
        if self.has_attribute(name):
            return self.integers(name)
        return [int(v) for v in self.required_weight(index, what).reshape(-1)] if self.has_input(index) else None

    def shape(self, index: int = 0) -> Shape:
        """Return an input's ONNX shape."""
        return self._shape(self.node.input[index])

    def result(self, index: int = 0) -> Shape:
        """Return an output's ONNX shape."""
        return self._shape(self.node.output[index])

    def _shape(self, tensor: str) -> Shape:
        if self.is_weight(tensor):
            return tuple(self.known_shape(tensor) or ())  # type: ignore[arg-type]
        if tensor not in self._tensors.shapes:
            self.refuse(f"the shape of '{tensor}' is only known at run time: fix free dimensions with --input-shapes")
        return self._tensors.shapes[tensor]

    def element_type(self, index: int = 0) -> str:
        """Return an input's element type in TFLite's words."""
        return self._element_type(self.node.input[index])

    def result_type(self, index: int = 0) -> str:
        """Return an output's element type in TFLite's words."""
        return self._element_type(self.node.output[index])

    def _element_type(self, tensor: str) -> str:
        number = self.view.elem_type(tensor)
        if number not in ELEMENT_TYPES:
            self.refuse(f"TFLite kernels have no element type for '{tensor}'")
        return ELEMENT_TYPES[number]

    # -- tensors -------------------------------------------------------------------------------

    def assigned_layout(self, index: int = 0) -> Layout:
        """Return the planned layout of an input; of a weight, ONNX's own."""
        return self._tensors.layouts.get(self.node.input[index], plain(len(self.shape(index))))

    def planned_layout(self, index: int = 0) -> Layout:
        """Return the planned layout of an output."""
        name = self.node.output[index]
        if name not in self._tensors.layouts:
            self.refuse(f"the shape of '{name}' is unknown: its attributes and inputs contradict each other")
        return self._tensors.layouts[name]

    def read(self, index: int, layout: Layout | None = None) -> Value:
        """Return an input of full rank in a layout; ONNX's own if none is given."""
        tensor = self.node.input[index]
        layout = layout or plain(len(self.shape(index)))
        if self.is_weight(tensor):
            return self.weight(index, layout.values)
        return self._tensors.get(tensor, layout)

    def operand(self, index: int, layout: Layout) -> Value:
        """Return an input of an elementwise operator, broadcast-ready for an output in a layout."""
        shape, rank = self.shape(index), len(layout.perm)
        full = (1,) * (rank - len(shape)) + tuple(shape)
        tensor = self.node.input[index]
        if self.is_weight(tensor):
            value = self.weight(index, lambda v: layout.values(v.reshape(full)))
            kept = next((i for i, d in enumerate(value.shape) if d != 1), max(rank - 1, 0))
            return self.graph.reshape(value, value.shape[kept:])
        if len(shape) == rank:
            return self._tensors.get(tensor, layout)
        value = self._tensors.get(tensor, plain(len(shape)))
        return self.graph.transpose(self.graph.reshape(value, full), layout.perm)

    def weight(self, index: int, change: Callable[[Array], Array] | None = None) -> Value:
        """Return a weight as a constant after `change`, whose result's shape must not depend on the values."""
        name = self.node.input[index]
        view = self.view

        def load() -> Array:
            values = view.weight(name)
            return values if change is None else change(values)

        size = view.weight_size(name)
        if size <= _SMALL:
            return self.graph.constant(load(), name)
        # A stride-0 array has the shape and the type without the values.
        array = view.weights[name]
        probe = np.broadcast_to(np.zeros((), np.bool_), array.shape)
        shape = probe.shape if change is None else change(probe).shape
        return Value(tuple(shape), self.element_type(index), name, load)

    def write(self, value: Value, layout: Layout | None = None, index: int = 0) -> None:
        """Say what an output is, in the layout in which it was computed; ONNX's own if none is given."""
        tensor = self.node.output[index]
        if not tensor:
            return
        shape = self.result(index)
        layout = layout or plain(len(shape))
        if tuple(map(int, layout.shape(shape))) != tuple(map(int, value.shape)):
            raise AssertionError(f"{self.op_type}: {value.shape} was written for {layout.shape(shape)}")
        self._tensors.put(tensor, value, layout)
        self._tensors.name(self._tensors.get(tensor, self._tensors.layouts[tensor]), tensor)


Write = Callable[[Op], None]


@dataclass(frozen=True)
class Converter:
    """A function and the layouts it reads and writes its tensors in."""

    op_type: str
    since: int
    write: Write
    layouts: LayoutRule


_CONVERTERS = OperatorRegistry[Converter]("a converter")
find_converter = _CONVERTERS.find


def converter(*op_types: str, layouts: LayoutRule, since: int = 1, domain: str = "") -> Callable[[Write], Write]:
    """Register the converter of operators.

    Parameters
    ----------
    *op_types : str
        ONNX operator names.
    layouts : LayoutRule
        What the function reads and writes.
    since : int
        First version of the operator that it understands.
    domain : str
        Operator domain.

    Raises
    ------
    ValueError
        If the operator version already has one.
    """

    def register(function: Write) -> Write:
        for op_type in op_types:
            _CONVERTERS.add(op_type, Converter(op_type, since, function, layouts), since=since, domain=domain)
        return function

    return register


def registered() -> list[tuple[str, Converter]]:
    """Return every converter with its domain, for documentation and tests."""
    return [(domain, converter) for domain, _, converter in _CONVERTERS]
