"""Arithmetic on TFLite values, with constants given as numbers; decompositions use it."""

import numpy as np

from onnxfold.export.tflite.graph import NUMPY_TYPES, Graph, Value
from onnxfold.export.tflite.layout import Dynamic, Shape

Term = Value | float

#: Integer types without kernels -> the type that is computed in.
WIDER = {"INT8": "INT32", "UINT8": "INT32", "INT16": "INT32", "UINT16": "INT32", "UINT32": "INT64"}

_CLIPS = {(0.0, None): "RELU", (0.0, float("inf")): "RELU", (0.0, 6.0): "RELU6", (-1.0, 1.0): "RELU_N1_TO_1"}
_MAX_BROADCAST_RANK = 4


def broadcast(a: Shape, b: Shape) -> Shape:
    """Return the shape of an elementwise result."""
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b), strict=True)
    return tuple(x if isinstance(x, Dynamic) or int(x) != 1 else y for x, y in pairs)


class Calculator:
    """Appends operators to a graph; a float operand becomes a constant of the other's type."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def unary(self, code: str, x: Value, **options: object) -> Value:
        """Append an operator of one input."""
        return self._graph.op(code, [x], x.shape, **options)  # type: ignore[arg-type]

    def binary(self, code: str, a: Term, b: Term, element_type: str = "") -> Value:
        """Append an operator of two inputs that broadcast."""
        other = a if isinstance(a, Value) else b
        assert isinstance(other, Value)
        x, y = self._value(a, other), self._value(b, other)
        shape = broadcast(x.shape, y.shape)
        if code in ("MAXIMUM", "MINIMUM"):
            x, y = self._raise_rank(x, len(shape)), self._raise_rank(y, len(shape))
        if len(shape) > _MAX_BROADCAST_RANK and not (_whole(x, shape) and _whole(y, shape)):
            return self._merge_axes(code, x, y, shape, element_type)
        return self._graph.op(code, [x, y], shape, element_type)

    def add(self, a: Term, b: Term) -> Value:
        """A + b."""
        return self.binary("ADD", a, b)

    def sub(self, a: Term, b: Term) -> Value:
        """A - b."""
        return self.binary("SUB", a, b)

    def mul(self, a: Term, b: Term) -> Value:
        """A b."""
        return self.binary("MUL", a, b)

    def div(self, a: Term, b: Term) -> Value:
        """A / b."""
        return self.binary("DIV", a, b)

    def greater(self, a: Term, b: Term) -> Value:
        """A > b."""
        return self.binary("GREATER", a, b, "BOOL")

    def select(self, condition: Value, a: Term, b: Term) -> Value:
        """A where the condition holds, else b."""
        other = a if isinstance(a, Value) else b
        assert isinstance(other, Value)
        x, y = self._value(a, other), self._value(b, other)
        shape = broadcast(condition.shape, broadcast(x.shape, y.shape))
        x, y = self._raise_rank(x, len(shape)), self._raise_rank(y, len(shape))
        return self._graph.op("SELECT_V2", [condition, x, y], shape, x.element_type)

    def clip(self, x: Value, low: float, high: float) -> Value:
        """Between two numbers."""
        return self.binary("MINIMUM", self.binary("MAXIMUM", x, low), high)

    def limit(self, x: Value, low: Term | None, high: Term | None) -> Value:
        """Between limits that may be missing."""
        code = _CLIPS.get((low, high)) if x.element_type == "FLOAT32" else None  # type: ignore[arg-type]
        if code is not None:
            return self.unary(code, x)
        narrow = x.element_type
        x = self._graph.cast(x, WIDER.get(narrow, narrow))
        for operator, limit in (("MAXIMUM", low), ("MINIMUM", high)):
            if limit is not None:
                limit = self._graph.cast(limit, x.element_type) if isinstance(limit, Value) else limit
                x = self.binary(operator, x, limit)
        return self._graph.cast(x, narrow)

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
        shape = tuple(1 if i in axes else d for i, d in enumerate(x.shape) if keep or i not in axes)
        return self._graph.op(code, [x, self._graph.indices(axes)], shape, keepDims=keep)

    def _value(self, term: Term, other: Value) -> Value:
        if isinstance(term, Value):
            return term
        # As many axes as the other has: the quantiser wants that of constants which share a scale with it.
        return self._graph.constant(np.full((1,) * len(other.shape), term, NUMPY_TYPES[other.element_type]))

    def _raise_rank(self, value: Value, rank: int) -> Value:
        """Return a constant with so many axes, and any other value as it is."""
        if not value.is_constant or len(value.shape) >= rank:
            return value
        return self._graph.constant(value.values().reshape((1,) * (rank - len(value.shape)) + tuple(value.shape)))

    def _merge_axes(self, code: str, x: Value, y: Value, shape: Shape, element_type: str) -> Value:
        """Merge neighbouring axes that broadcast alike, since kernels broadcast along few axes only."""
        rank = len(shape)
        full = [(1,) * (rank - len(v.shape)) + tuple(v.shape) for v in (x, y)]
        kinds = [tuple(_is_one(s[i]) and not _is_one(shape[i]) for s in full) for i in range(rank)]
        groups: list[list[int]] = []
        for i in range(rank):
            joins = groups and kinds[i] == kinds[groups[-1][0]] and not isinstance(shape[i], Dynamic)
            if joins and not isinstance(shape[groups[-1][0]], Dynamic):
                groups[-1].append(i)
            else:
                groups.append([i])
        merged = [
            self._graph.reshape(v, tuple(_product(s, g) for g in groups)) for v, s in zip((x, y), full, strict=True)
        ]
        result = self._graph.op(code, merged, tuple(_product(shape, g) for g in groups), element_type)
        return self._graph.reshape(result, shape)


def _is_one(size: int) -> bool:
    return int(size) == 1 and not isinstance(size, Dynamic)


def _product(shape: Shape, axes: list[int]) -> int:
    if len(axes) == 1:
        return shape[axes[0]]
    return int(np.prod([int(shape[a]) for a in axes]))


def _whole(value: Value, shape: Shape) -> bool:
    """Whether a value does not broadcast, or is one number."""
    return int(np.prod(value.shape)) == 1 or tuple(map(int, value.shape)) == tuple(map(int, shape))
