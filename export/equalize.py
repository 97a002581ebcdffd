r"""Channels of one tensor brought to like ranges, before a tensor gets one scale for all of them.

Where everything between layers is linear or a ReLU, channel c of what they exchange may be divided by s_c > 0: rows of
the layers that write it are divided by s_c, columns of those that read it multiplied, and no output changes. Rounding
to int8 does: a channel that uses a twentieth of its tensor's range has four bits less than the tensor.

With r_c the largest value of a channel and w_c the largest weight that reads it, as parts of those of all channels,
s_c = sqrt(r_c / w_c) leaves both the activations and the weights of a reader alike; readers with a scale of their own
for every channel, depthwise convolutions, take s_c = r_c.

References
----------
Nagel et al., *Data-Free Quantization through Weight Equalization and Bias Correction*, 2019; Xiao et al.,
*SmoothQuant*, 2023.
"""

from collections.abc import Callable, Iterator

import numpy as np

from onnxfold.export.tflite.graph import Graph, Operator, Value
from onnxfold.export.tflite.schema import schema
from onnxfold.graph.tensors import Array

#: Smallest and largest value of every channel, which are last.
Ranges = dict[int, tuple[Array, Array]]

#: Operators whose results scale with their first input, channel by channel, where they leave the last axis alone.
_HOMOGENEOUS = frozenset({
    "RELU", "LEAKY_RELU", "PRELU", "MAX_POOL_2D", "AVERAGE_POOL_2D", "MEAN", "SUM", "REDUCE_MAX", "RESIZE_BILINEAR",
    "RESIZE_NEAREST_NEIGHBOR", "PAD", "MIRROR_PAD", "RESHAPE", "TRANSPOSE", "NEG", "ABS",
})  # fmt: skip
#: Where layers have their input and their weights.
_LAYERS = {"CONV_2D": (0, 1), "FULLY_CONNECTED": (0, 1), "DEPTHWISE_CONV_2D": (0, 1), "TRANSPOSE_CONV": (2, 1)}
#: Numbers of this size stand for minus infinity where maxima are padded.
_LOWEST = 3e38
#: Channels below this part of the largest count as that: other inputs may reach further.
_LEAST = 1 / 16


def equalize(graph: Graph, ranges: Ranges) -> None:
    """Scale channels so that those of one tensor have like ranges.

    Parameters
    ----------
    graph : Graph
        The graph; its constants are replaced.
    ranges : dict of int to pair of ndarray
        Ranges by the id of a value; they are scaled, too.
    """
    classes = _Classes(graph, ranges)
    for op in graph.operators:
        classes.take(op)
    scales = classes.scales(ranges)
    for op in graph.operators:
        _rescale(op, scales)
    for value in classes.values():
        low, high = ranges[id(value)]
        ranges[id(value)] = low / scales(value), high / scales(value)


class _Classes:
    """Channels of all tensors, those that must have one scale in one class."""

    def __init__(self, graph: Graph, ranges: Ranges) -> None:
        self._start: dict[int, int] = {}
        self._values: dict[int, Value] = {}
        count = 0
        for value in (*graph.inputs, *(v for op in graph.operators for v in op.outputs)):
            if value.shape and value.element_type == "FLOAT32" and id(value) in ranges and int(value.shape[-1]):
                self._start[id(value)], self._values[id(value)] = count, value
                count += int(value.shape[-1])
        self._pairs: list[tuple[Array, Array]] = []
        self._blocked: list[Array] = []
        self._columns: list[tuple[Array, Array]] = []
        self._roots: Array = np.arange(count)
        for value in (*graph.inputs, *graph.outputs):
            self._block(value)

    def values(self) -> Iterator[Value]:
        """Return the tensors that have channels."""
        return iter(self._values.values())

    def take(self, op: Operator) -> None:
        """Note which channels an operator joins, and which it must get as they are."""
        writes = self._joins(op)
        if writes and op.options.get("fusedActivationFunction", 0) not in (
            0,
            int(schema().ActivationFunctionType.RELU),
        ):
            self._block(op.outputs[0])
        if not writes:
            for value in (*op.inputs, *op.outputs):
                self._block(value)

    def _joins(self, op: Operator) -> bool:
        """Return whether an operator's inputs and outputs may be scaled."""
        if any(v is not None and v.element_type == "FLOAT32" and not v.is_constant and id(v) not in self._start
               for v in (*op.inputs, *op.outputs)):  # fmt: skip
            return False
        if op.code in _LAYERS:
            return self._layer(op)
        if op.code in ("ADD", "SUB", "MUL", "DIV"):
            return self._arithmetic(op)
        first, result = op.inputs[0], op.outputs[0]
        if op.code == "CONCATENATION":
            return self._concatenation(op)
        if op.code == "SPLIT" and op.inputs[1] is not None:
            parts = [self._ids(part) for part in op.outputs]
            whole = self._ids(op.inputs[1])
            is_last = int(op.inputs[0].values()) % len(op.inputs[1].shape) == len(op.inputs[1].shape) - 1  # type: ignore[union-attr]
            self._join(np.concatenate(parts), whole if is_last else np.tile(whole, len(parts)))
            return True
        if op.code == "GATHER" and first is not None and op.options.get("axis") == len(first.shape) - 1:
            if op.inputs[1] is None or not op.inputs[1].is_constant or len(op.inputs[1].shape) != 1:
                return False
            self._join(self._ids(result), self._ids(first)[op.inputs[1].values()])
            return True
        if op.code not in _HOMOGENEOUS or first is None or first.is_constant or not _keeps_channels(op, first, result):
            return False
        self._join(self._ids(first), self._ids(result))
        return all(v is None or v.is_constant for v in op.inputs[1:])

    def _layer(self, op: Operator) -> bool:
        at, weights = _LAYERS[op.code]
        x, weight = op.inputs[at], op.inputs[weights]
        biases = [v for v in op.inputs[max(at, weights) + 1 :] if v is not None]
        if x is None or x.is_constant or weight is None or not all(v.is_constant for v in (weight, *biases)):
            return False
        if op.code == "DEPTHWISE_CONV_2D":
            return True
        if int(weight.shape[-1]) != int(x.shape[-1]):
            return False
        largest = np.abs(weight.values()).max(axis=tuple(range(len(weight.shape) - 1)))
        self._columns.append((self._ids(x), largest / max(float(largest.max()), 1e-30)))
        return True

    def _arithmetic(self, op: Operator) -> bool:
        a, b = op.inputs
        result = op.outputs[0]
        assert a is not None and b is not None
        if a.is_constant or b.is_constant:
            x, constant = (b, a) if a.is_constant else (a, b)
            if (op.code == "DIV" and x is b) or not _same_channels(x, result):
                return False
            self._join(self._ids(x), self._ids(result))
            return int(constant.shape[-1] if constant.shape else 1) in (1, int(x.shape[-1]))
        if op.code == "DIV":
            return False
        if op.code == "MUL":
            x, gate = (a, b) if np.prod(a.shape) >= np.prod(b.shape) else (b, a)
            self._block(gate)
            self._join(self._ids(x), self._ids(result))
            return _same_channels(x, result)
        if not _same_channels(a, result) or not _same_channels(b, result):
            return False
        self._join(self._ids(a), self._ids(result))
        self._join(self._ids(b), self._ids(result))
        return True

    def _concatenation(self, op: Operator) -> bool:
        if any(v is None or v.is_constant for v in op.inputs):
            return False
        parts = [self._ids(v) for v in op.inputs]  # type: ignore[arg-type]
        whole = self._ids(op.outputs[0])
        is_last = int(op.options["axis"]) % len(op.outputs[0].shape) == len(op.outputs[0].shape) - 1
        self._join(np.concatenate(parts), whole if is_last else np.tile(whole, len(parts)))
        return True

    def _ids(self, value: Value) -> Array:
        return self._start[id(value)] + np.arange(int(value.shape[-1]))

    def _join(self, a: Array, b: Array) -> None:
        if len(a) == len(b):
            self._pairs.append((a, b))
        else:
            self._blocked += [a, b]

    def _block(self, value: Value | None) -> None:
        if value is not None and id(value) in self._start:
            self._blocked.append(self._ids(value))

    def scales(self, ranges: Ranges) -> Callable[[Value], Array]:
        """Return the scale of every channel of a value."""
        self._unite()
        size = len(self._roots)
        reached, read = np.zeros(size), np.zeros(size)
        for value in self._values.values():
            largest = np.maximum(*map(np.abs, ranges[id(value)]))
            np.maximum.at(reached, self._roots[self._ids(value)], largest / max(float(largest.max()), 1e-30))
        for ids, column in self._columns:
            np.maximum.at(read, self._roots[ids], column)
        reached = np.maximum(reached, _LEAST)
        scales = np.where(read > 0.0, np.sqrt(reached / np.maximum(read, _LEAST)), reached)
        for ids in self._blocked:
            scales[self._roots[ids]] = 1.0
        of_all = scales[self._roots]

        def of(value: Value) -> Array:
            known = id(value) in self._start
            found: Array = of_all[self._ids(value)] if known else np.ones(1)
            return found

        return of

    def _unite(self) -> None:
        """Give every class the number of its first channel."""
        if not self._pairs:
            return
        a, b = (np.concatenate(side) for side in zip(*self._pairs, strict=True))
        before = np.full_like(self._roots, -1)
        while not np.array_equal(before, self._roots):
            before = self._roots.copy()
            least = np.minimum(self._roots[a], self._roots[b])
            for side in (a, b):
                np.minimum.at(self._roots, before[side], least)
                np.minimum.at(self._roots, side, least)
            self._roots = self._roots[self._roots]


def _keeps_channels(op: Operator, first: Value, result: Value) -> bool:
    """Whether every channel of a result is made of the same channel of the first input."""
    if not _same_channels(first, result):
        return False
    if op.code in ("MEAN", "SUM", "REDUCE_MAX"):
        axes = op.inputs[1].values() if op.inputs[1] is not None else np.zeros(0)
        return not any(int(a) % len(first.shape) == len(first.shape) - 1 for a in axes.reshape(-1))
    if op.code in ("PAD", "MIRROR_PAD"):
        return op.inputs[1] is not None and not op.inputs[1].values()[-1].any()
    if op.code == "TRANSPOSE":
        return op.inputs[1] is not None and int(op.inputs[1].values()[-1]) == len(first.shape) - 1
    if op.code == "PRELU":
        return op.inputs[1] is not None and op.inputs[1].is_constant
    return True


def _same_channels(a: Value, b: Value) -> bool:
    return bool(a.shape and b.shape) and int(a.shape[-1]) == int(b.shape[-1])


def _rescale(op: Operator, scales: Callable[[Value], Array]) -> None:
    """Give an operator constants for scaled inputs and outputs."""
    after = scales(op.outputs[0])
    if op.code in _LAYERS:
        at, weights = _LAYERS[op.code]
        x, weight = op.inputs[at], op.inputs[weights]
        if x is None or weight is None or not weight.is_constant or weight.element_type != "FLOAT32":
            return
        before = scales(x)
        if (before == 1.0).all() and (after == 1.0).all():
            return
        if op.code == "DEPTHWISE_CONV_2D":
            factors: Array = np.repeat(before, int(weight.shape[-1]) // len(before)) / after
        else:
            factors = before / after.reshape(-1, *[1] * (len(weight.shape) - 1))
        op.inputs[weights] = _times(weight, factors)
        for i in range(max(at, weights) + 1, len(op.inputs)):
            bias = op.inputs[i]
            if bias is not None:
                op.inputs[i] = _times(bias, 1.0 / after)
    elif op.code in ("ADD", "SUB") and not (after == 1.0).all():
        op.inputs[:] = [_times(v, 1.0 / after) if v is not None and v.is_constant else v for v in op.inputs]


def _times(value: Value, factors: Array) -> Value:
    scaled: Array = (value.values().astype(np.float64) * factors).astype(np.float32)
    return Value(scaled.shape, value.element_type, value.name, lambda: scaled)


def interval(values: Array) -> tuple[Array, Array]:
    """Return the smallest and largest value of every channel, which is last; what pads maxima counts nothing."""
    rows = values.reshape(-1, values.shape[-1] if values.ndim else 1)
    known = np.abs(rows) < _LOWEST
    low, high = np.where(known, rows, np.inf).min(axis=0), np.where(known, rows, -np.inf).max(axis=0)
    return np.where(known.any(axis=0), low, 0.0), np.where(known.any(axis=0), high, 0.0)
