"""Registry of converters, what one sees of its node: shapes, constants, tensors in a layout, and their arithmetic."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partialmethod, reduce
from math import prod
from operator import mul
from typing import NoReturn

import numpy as np
from onnx import NodeProto

from onnxfold.errors import ExportError
from onnxfold.export.tflite.graph import ELEMENT_TYPES, NUMPY_TYPES, Graph, Value, is_one
from onnxfold.export.tflite.layout import Dynamic, Layout, LayoutRule, Shape, plain
from onnxfold.graph.registry import NodeReader, OperatorRegistry
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView

#: Reading constants up to this many elements at once is cheap; larger ones are read when they are written.
_SMALL = 4096
#: A mean of more values is taken along one axis after the other.
_MANY = 1 << 16


class Tensors:
    """The TFLite values of ONNX tensors, in every layout in which they exist so far."""

    def __init__(self, view: GraphView, shapes: Mapping[str, Shape], layouts: Mapping[str, Layout]) -> None:
        self.view = view
        self.graph = Calculator()
        self.shapes = shapes
        self.layouts = layouts
        self._values: dict[str, dict[Layout, Value]] = {}
        self._named: set[Value] = set()

    def name(self, value: Value, tensor: str) -> None:
        """Call a value by an ONNX name, unless it is a constant or is called by another one."""
        if not value.is_constant and value not in self._named:
            self._named.add(value)
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
        rank = len(source.block or wanted.block) + 1
        if source.block:
            image = self.graph.reshape(value, (*value.shape[:1], *source.block[1:], source.block[0]))
            image = self.graph.transpose(image, (0, rank - 1, *range(1, rank - 1)))
            return self._convert(self.graph.reshape(image, value.shape), plain(2), wanted)
        if wanted.block:
            image = self.graph.reshape(value, (*value.shape[:1], *wanted.block))
            return self.graph.reshape(self.graph.transpose(image, (0, *range(2, rank), 1)), value.shape)
        return self.graph.transpose(value, [source.perm.index(p) for p in wanted.perm])


class Op(NodeReader):
    """One node and the graph that it is written to."""

    def __init__(self, node: NodeProto, tensors: Tensors, rule: LayoutRule) -> None:
        super().__init__(tensors.view, node)
        self._tensors, self._rule = tensors, rule
        self.graph = tensors.graph

    def refuse(self, reason: str) -> NoReturn:
        """Raise the error that names this node."""
        raise ExportError(reason, node=self.name, op_type=self.op_type)

    def require_fixed(self, sizes: Iterable[int], does: str) -> None:
        """Refuse what the node `does` with dimensions of which one is free."""
        if any(isinstance(size, Dynamic) for size in sizes):
            self.refuse(f"it {does} a dimension that is free: fix it with --input-shapes")

    def required_weight(self, index: int, what: str) -> Array:
        """Return the values of an input that has to be a weight; `what` it is, for the error."""
        values = self.constant(index)
        if values is None:
            self.refuse(f"its {what} is computed at run time: TFLite needs it as a constant")
        return values

    def numbers(self, index: int, name: str, what: str) -> list[int]:
        """Return integers given as an attribute (older operator sets) or as a constant input; none if not given."""
        if self.has_input(index):
            return [int(v) for v in self.required_weight(index, what).reshape(-1)]
        return self.integers(name)

    def shape(self, index: int = 0) -> Shape:
        """Return an input's ONNX shape."""
        return self._shape(self.node.input[index])

    def result(self, index: int = 0) -> Shape:
        """Return an output's ONNX shape."""
        return self._shape(self.node.output[index])

    def _shape(self, tensor: str) -> Shape:
        if self.is_weight(tensor):
            return tuple(self.view.shape(tensor) or ())  # type: ignore[arg-type]
        if tensor not in self._tensors.shapes:
            self.refuse(f"the shape of '{tensor}' is only known at run time: fix free dimensions with --input-shapes")
        return self._tensors.shapes[tensor]

    def element_type(self, index: int = 0) -> str:
        """Return an input's element type in TFLite's words."""
        return self._element_type(self.node.input[index])

    def result_type(self) -> str:
        """Return the output's element type in TFLite's words."""
        return self._element_type(self.node.output[0])

    def _element_type(self, tensor: str) -> str:
        number = self.view.elem_type(tensor)
        if number not in ELEMENT_TYPES:
            self.refuse(f"TFLite kernels have no element type for '{tensor}'")
        return ELEMENT_TYPES[number]

    def assigned_layout(self) -> Layout:
        """Return the planned layout of the first input; of a weight, ONNX's own."""
        return self._tensors.layouts.get(self.node.input[0], plain(len(self.shape())))

    def planned_layout(self) -> Layout:
        """Return the planned layout of the output."""
        name = self.node.output[0]
        if name not in self._tensors.layouts:
            self.refuse(f"the shape of '{name}' is unknown: its attributes and inputs contradict each other")
        return self._tensors.layouts[name]

    @property
    def layout(self) -> Layout:
        """The layout that the operator reads and writes tensors of the output's rank in."""
        return self._rule.own(self, self.planned_layout() if self._rule.follows else plain(len(self.shape())))

    def read(self, index: int, layout: Layout | None = None) -> Value:
        """Return an input of full rank in a layout; in the operator's if none is given."""
        tensor = self.node.input[index]
        layout = layout or self.layout.of_rank(len(self.shape(index)))
        if self.is_weight(tensor):
            return self.weight(index, layout.values)
        return self._tensors.get(tensor, layout)

    def operand(self, index: int, layout: Layout | None = None) -> Value:
        """Return an input of an elementwise operator, broadcast-ready for an output in a layout."""
        layout = layout or self.layout
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
        name, view = self.node.input[index], self.view
        changed = change or (lambda values: values)
        if view.weight_size(name) <= _SMALL:
            return self.graph.constant(changed(view.weight(name)), name)
        # A stride-0 array has the shape and the type without the values.
        probe = np.broadcast_to(np.zeros((), np.bool_), view.weights[name].shape)
        return Value(tuple(changed(probe).shape), self.element_type(index), name, lambda: changed(view.weight(name)))

    def write(self, value: Value, layout: Layout | None = None, index: int = 0) -> None:
        """Say what an output is, if it is read, in the layout in which it was computed, by default the operator's."""
        if not self.has_output(index):
            return
        tensor, shape = self.node.output[index], self.result(index)
        layout = layout or self.layout.of_rank(len(shape))
        if layout.shape(shape) != value.shape:
            raise AssertionError(f"{self.op_type}: {value.shape} was written for {layout.shape(shape)}")
        self._tensors.put(tensor, value, layout)
        self._tensors.name(self._tensors.get(tensor, self._tensors.layouts[tensor]), tensor)


#: Returns the output, unless it writes that itself.
Write = Callable[[Op], Value | None]


@dataclass(frozen=True)
class Converter:
    """A function and the layouts it reads and writes its tensors in."""

    write: Write
    layouts: LayoutRule


_CONVERTERS = OperatorRegistry[Converter]("a converter")
find_converter = _CONVERTERS.find


def converter(*op_types: str, layouts: LayoutRule, since: int = 1) -> Callable[[Write], Write]:
    """Register the converter of operators, from the version `since` on; a version that has one is a ValueError."""

    def register(function: Write) -> Write:
        for op_type in op_types:
            _CONVERTERS.add(op_type, Converter(function, layouts), since=since)
        return function

    return register


def how_written() -> dict[str, str]:
    """Return how every operator is written, in the words of its converter, for documentation and tests."""
    return {op_type: " ".join((known.write.__doc__ or "").split()) for _, op_type, known in _CONVERTERS}


Term = Value | float

#: Integer types without kernels -> the type that is computed in.
WIDER = {"INT8": "INT32", "UINT8": "INT32", "INT16": "INT32", "UINT16": "INT32", "UINT32": "INT64"}

_CLIPS = {(0.0, None): "RELU", (0.0, float("inf")): "RELU", (0.0, 6.0): "RELU6", (-1.0, 1.0): "RELU_N1_TO_1"}
_MAX_BROADCAST_RANK = 4


def broadcast(a: Shape, b: Shape) -> Shape:
    """Return the shape of an elementwise result."""
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b), strict=True)
    return tuple(y if is_one(x) else x for x, y in pairs)


class Calculator(Graph):
    """A graph with arithmetic; a float operand becomes a constant of the other's type."""

    def unary(self, code: str, x: Value, **options: object) -> Value:
        """Append an operator of one input."""
        return self.op(code, [x], x.shape, **options)  # type: ignore[arg-type]

    def binary(self, code: str, a: Term, b: Term, element_type: str = "") -> Value:
        """Append an operator of two inputs that broadcast."""
        x, y = self._values(a, b)
        shape = broadcast(x.shape, y.shape)
        if code in ("MAXIMUM", "MINIMUM"):
            x, y = self._raise_rank(x, len(shape)), self._raise_rank(y, len(shape))
        if len(shape) > _MAX_BROADCAST_RANK and not (_whole(x, shape) and _whole(y, shape)):
            return self._merge_axes(code, x, y, shape, element_type)
        return self.op(code, [x, y], shape, element_type)

    add = partialmethod(binary, "ADD")
    sub = partialmethod(binary, "SUB")
    mul = partialmethod(binary, "MUL")
    div = partialmethod(binary, "DIV")
    greater = partialmethod(binary, "GREATER", element_type="BOOL")

    def select(self, condition: Value, a: Term, b: Term) -> Value:
        """A where the condition holds, else b."""
        x, y = self._values(a, b)
        shape = broadcast(condition.shape, broadcast(x.shape, y.shape))
        x, y = self._raise_rank(x, len(shape)), self._raise_rank(y, len(shape))
        return self.op("SELECT_V2", [condition, x, y], shape, x.element_type)

    def limit(self, x: Value, low: Term | None, high: Term | None) -> Value:
        """Between limits that may be missing."""
        code = _CLIPS.get((low, high)) if x.element_type == "FLOAT32" else None  # type: ignore[arg-type]
        if code is not None:
            return self.unary(code, x)
        narrow = x.element_type
        x = self.cast(x, WIDER.get(narrow, narrow))
        for operator, limit in (("MAXIMUM", low), ("MINIMUM", high)):
            if limit is not None:
                limit = self.cast(limit, x.element_type) if isinstance(limit, Value) else limit
                x = self.binary(operator, x, limit)
        return self.cast(x, narrow)

    def elu(self, x: Value, alpha: float) -> Value:
        """max(x, 0) + alpha (exp(min(x, 0)) - 1)."""
        negative = self.unary("ELU", self.binary("MINIMUM", x, 0.0))
        return self.add(self.unary("RELU", x), self.mul(negative, alpha))

    def softplus(self, x: Value) -> Value:
        """max(x, 0) + log(1 + exp(-|x|))."""
        small = self.unary("EXP", self.unary("NEG", self.unary("ABS", x)))
        return self.add(self.unary("RELU", x), self.unary("LOG", self.add(small, 1.0)))

    def reduce(self, code: str, x: Value, axes: list[int], keep: bool = True) -> Value:
        """Append a reduction along axes of the TFLite tensor."""
        axes = sorted(a % max(len(x.shape), 1) for a in axes)
        # Kernels add values up one by one in float32: a sum of 640,000 has three digits.
        if code == "MEAN" and prod(x.shape[i] for i in axes) > _MANY and prod(x.shape[i] for i in axes[1:]) > 1:
            x = self.reduce(code, x, axes[1:])
        shape = tuple(1 if i in axes else d for i, d in enumerate(x.shape) if keep or i not in axes)
        return self.op(code, [x, self.indices(axes)], shape, keepDims=keep)

    def _values(self, a: Term, b: Term) -> tuple[Value, Value]:
        other = a if isinstance(a, Value) else b
        assert isinstance(other, Value)
        # As many axes as the other has: the quantiser wants that of constants which share a scale with it.
        shape, dtype = (1,) * len(other.shape), NUMPY_TYPES[other.element_type]
        x, y = (v if isinstance(v, Value) else self.constant(np.full(shape, v, dtype)) for v in (a, b))
        return x, y

    def _raise_rank(self, value: Value, rank: int) -> Value:
        """Return a constant with so many axes, and any other value as it is."""
        if not value.is_constant or len(value.shape) >= rank:
            return value
        return self.constant(value.values().reshape((1,) * (rank - len(value.shape)) + tuple(value.shape)))

    def _merge_axes(self, code: str, x: Value, y: Value, shape: Shape, element_type: str) -> Value:
        """Merge neighbouring axes that broadcast alike, since kernels broadcast along few axes only."""
        rank = len(shape)
        full = [(1,) * (rank - len(v.shape)) + tuple(v.shape) for v in (x, y)]
        kinds = [tuple(is_one(s[i]) and not is_one(shape[i]) for s in full) for i in range(rank)]
        groups: list[list[int]] = []
        for i in range(rank):
            joins = groups and kinds[i] == kinds[groups[-1][0]] and not isinstance(shape[i], Dynamic)
            if joins and not isinstance(shape[groups[-1][0]], Dynamic):
                groups[-1].append(i)
            else:
                groups.append([i])
        merged = [self.reshape(v, tuple(_product(s, g) for g in groups)) for v, s in zip((x, y), full, strict=True)]
        result = self.op(code, merged, tuple(_product(shape, g) for g in groups), element_type)
        return self.reshape(result, shape)


def _product(shape: Shape, axes: list[int]) -> int:
    return reduce(mul, (shape[a] for a in axes))  # of a single axis its size, which may be dynamic


def _whole(value: Value, shape: Shape) -> bool:
    """Whether a value does not broadcast, or is one number."""
    return prod(value.shape) == 1 or value.shape == shape
