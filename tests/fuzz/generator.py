"""Random ONNX graphs: seeded, valid, small, and built from every operator that has a channel rule.

The axis of the batch comes first in every tensor of the pool and is left out of the tracked shapes. Domains are kept
safe for any values (Log of |x| + c, Asin of 0.9 tanh), so that a fold may not make an output infinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, defs, helper, numpy_helper

from onnxfold.channels import walker  # noqa: F401  (registers the rules)
from onnxfold.channels.registry import ChannelRule, registered

Array = NDArray[Any]
Shape = tuple[int, ...]
Feeds = dict[str, Array]

MICROSOFT = "com.microsoft"
STATIC_BATCH = 2
NEWEST_OPSET = 24
_MAX_ELEMENTS = 700
_ATTEMPTS = 40

#: onnx's checker does not know the operator, which onnxruntime nevertheless writes into the default domain.
UNKNOWN_TO_ONNX = {"SimplifiedLayerNormalization"}

ort.set_default_logger_severity(4)


class GeneratorError(Exception):
    """No valid graph was found."""


class _NotHereError(Exception):
    """A block cannot be placed on this tensor or in this operator set."""


Block = Callable[["Graph", str, str], str]
_BLOCKS: dict[str, list[tuple[Block, range, float]]] = {}


def block(*names: str, ranks: tuple[int, int] = (1, 4), weight: float = 1.0) -> Callable[[Block], Block]:
    """Register a block under the operators that it places; `ranks` without the batch."""

    def register(function: Block) -> Block:
        for name in names:
            _BLOCKS.setdefault(name, []).append((function, range(ranks[0], ranks[1] + 1), weight))
        return function

    return register


class Graph:
    """A graph under construction."""

    def __init__(self, rng: np.random.Generator, opset: int, dtype: np.dtype[Any], batch: int | None) -> None:
        self.rng = rng
        self.opset = opset
        self.dtype = dtype
        self.batch = batch
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.shapes: dict[str, Shape] = {}
        self.pool: list[str] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.integer_outputs: list[tuple[str, Shape]] = []
        self.constant_nodes = rng.random() < 0.15
        self._zero_biases: dict[Shape, str] = {}
        self._count = 0

    # -- drawing -------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def integer(self, low: int, high: int) -> int:
        """Both ends included."""
        return int(self.rng.integers(low, high + 1))

    def choice(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def width(self) -> int:
        return int(self.choice([2, 3, 4, 4, 5, 6, 6, 8, 8, 9, 10, 12]))

    def normal(self, *shape: int, std: float = 1.0, mean: float = 0.0) -> Array:
        return self.rng.normal(mean, std, shape).astype(self.dtype)

    def uniform(self, low: float, high: float, *shape: int) -> Array:
        return self.rng.uniform(low, high, shape).astype(self.dtype)

    # -- placing -------------------------------------------------------------------------------

    def fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}_{self._count}"

    def const(self, values: Array | Sequence[int] | float, dtype: Any = None) -> str:
        """Add a constant: numbers given as list are int64, a float has the graph's type."""
        if isinstance(values, float):
            values = np.array(values, dtype or self.dtype)
        elif not isinstance(values, np.ndarray):
            values = np.array(values, dtype or np.int64)
        name = self.fresh("c")
        tensor = (
            numpy_helper.from_array(np.ascontiguousarray(values), name)
            if values.ndim
            else (numpy_helper.from_array(values, name))
        )
        if self.constant_nodes and self.chance(0.5):
            self.nodes.append(helper.make_node("Constant", [], [name], name=f"node_{name}", value=tensor))
        else:
            self.initializers.append(tensor)
        return name

    def bias(self, *shape: int) -> str:
        """A bias; now and then all zero, one, or the one that another layer has already."""
        if self.chance(0.15):
            if shape not in self._zero_biases:
                value = self.choice([0.0, 0.0, 0.25])
                self._zero_biases[shape] = self.const(np.full(shape, value, self.dtype))
            return self._zero_biases[shape]
        return self.const(self.normal(*shape, std=0.3))

    def has(self, op: str, domain: str = "") -> bool:
        if domain or op in UNKNOWN_TO_ONNX:
            return True
        try:
            schema = defs.get_schema(op, self.opset, "")
        except defs.SchemaError:
            return False
        return not schema.deprecated

    def node(
        self,
        op: str,
        inputs: Sequence[str],
        shape: Sequence[int] = (),
        domain: str = "",
        outputs: int = 1,
        **attrs: Any,
    ) -> str:
        """Add a node with one used output; `shape` is that of the output."""
        return self.nodes_out(op, inputs, [tuple(shape)] * outputs, domain, **attrs)[0]

    def nodes_out(
        self, op: str, inputs: Sequence[str], shapes: Sequence[Shape | None], domain: str = "", **attrs: Any
    ) -> list[str]:
        """Add a node; an output without a shape is left out."""
        if not self.has(op, domain):
            raise _NotHereError
        name = self.fresh(op.lower())
        outs = [f"{name}_out{i}" if s is not None else "" for i, s in enumerate(shapes)]
        unnamed = self.chance(0.1)
        self.nodes.append(
            helper.make_node(op, list(inputs), outs, name="" if unnamed else name, domain=domain, **attrs)
        )
        for out, s in zip(outs, shapes, strict=True):
            if s is not None:
                self.shapes[out] = tuple(s)
        return outs

    def same(self, op: str, x: str, *others: str, domain: str = "", **attrs: Any) -> str:
        """Add a node whose result has the shape of `x`."""
        return self.node(op, [x, *others], self.shapes[x], domain, **attrs)

    def plus(self, x: str, value: float) -> str:
        return self.same("Add", x, self.const(value))

    def times(self, x: str, value: float) -> str:
        return self.same("Mul", x, self.const(value))

    def cast(self, x: str, to: int | None = None) -> str:
        return self.same("Cast", x, to=to or helper.np_dtype_to_tensor_dtype(self.dtype))

    def positive(self, x: str, least: float) -> str:
        return self.plus(self.same(self.choice(["Abs", "Sigmoid"]), x), least)

    def bounded(self, x: str, bound: float = 0.9) -> str:
        return self.times(self.same("Tanh", x), bound)

    def reduce(self, op: str, x: str, axes: Sequence[int], keepdims: int) -> str:
        """`axes` count the batch as axis 0."""
        rank = len(self.shapes[x]) + 1
        gone = {a % rank for a in axes}
        shape = [1 if i in gone else d for i, d in enumerate(self.shapes[x], 1) if keepdims or i not in gone]
        if self.opset < (13 if op == "ReduceSum" else 18):
            return self.node(op, [x], shape, axes=list(axes), keepdims=keepdims)
        return self.node(op, [x, self.const(list(axes))], shape, keepdims=keepdims)

    def unsqueeze(self, x: str, axes: Sequence[int]) -> str:
        shape = list(self.shapes[x])
        for axis in sorted(axes):
            shape.insert(axis - 1, 1)
        if self.opset < 13:
            return self.node("Unsqueeze", [x], shape, axes=list(axes))
        return self.node("Unsqueeze", [x, self.const(list(axes))], shape)

    def squeeze(self, x: str, axes: Sequence[int]) -> str:
        shape = [d for i, d in enumerate(self.shapes[x], 1) if i not in axes]
        if self.opset < 13:
            return self.node("Squeeze", [x], shape, axes=list(axes))
        return self.node("Squeeze", [x, self.const(list(axes))], shape)

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        """The batch written as 0, -1 or its number; else one dimension may be -1, or 0 where it is copied."""
        old = self.shapes[x]
        batch = [0] + ([self.batch] if self.batch else [])
        target = [self.choice(batch), *shape]
        if self.chance(0.3):
            target[0] = -1
        elif len(shape) and self.chance(0.3):
            target[1 + int(self.rng.integers(len(shape)))] = -1
        for i, d in enumerate(shape):
            if i < len(old) and old[i] == d and self.chance(0.15) and target[i + 1] > 0:
                target[i + 1] = 0
        return self.node("Reshape", [x, self.const(target)], shape)

    def transpose(self, x: str, perm: Sequence[int]) -> str:
        """`perm` numbers the axes behind the batch from 1 on."""
        return self.node("Transpose", [x], [self.shapes[x][p - 1] for p in perm], perm=[0, *perm])

    def concat(self, tensors: Sequence[str], axis: int) -> str:
        """`axis` counts the batch as axis 0."""
        shape = list(self.shapes[tensors[0]])
        shape[axis - 1] = sum(self.shapes[t][axis - 1] for t in tensors)
        written = axis if self.chance(0.6) else axis - len(shape) - 1
        return self.node("Concat", tensors, shape, axis=written if self.opset >= 11 else axis)

    def flatten(self, x: str) -> str:
        return self.node("Flatten", [x], [math.prod(self.shapes[x])], axis=1)

    def slice(self, x: str, axis: int, start: int, end: int) -> str:
        """`axis` counts the batch as axis 0."""
        shape = list(self.shapes[x])
        size = shape[axis - 1]
        shape[axis - 1] = end - start
        first = self.choice([start, start - size]) if start else 0
        last = self.choice([end, end - size]) if end < size else self.choice([size, 2**31 - 1, 2**62])
        if self.opset < 10:
            return self.node("Slice", [x], shape, starts=[first], ends=[last], axes=[axis])
        constants = [self.const([v]) for v in (first, last, axis)]
        if self.chance(0.5):
            constants.append(self.const([1]))
        return self.node("Slice", [x, *constants], shape)

    def split(self, x: str, axis: int, sizes: Sequence[int], explicit: bool) -> list[str]:
        """`axis` counts the batch as axis 0."""
        shapes = []
        for size in sizes:
            shape = list(self.shapes[x])
            shape[axis - 1] = size
            shapes.append(tuple(shape))
        inputs, attrs = [x], {"axis": axis}
        if explicit and self.opset < 13:
            attrs["split"] = list(sizes)
        elif explicit:
            inputs.append(self.const(list(sizes)))
        elif self.opset >= 18:
            attrs["num_outputs"] = len(sizes)
        return self.nodes_out("Split", inputs, shapes, **attrs)

    # -- layers --------------------------------------------------------------------------------

    def conv(self, x: str, outputs: int, kernel: int | None = None, groups: int = 1, stride: int = 1) -> str:
        channels, *spatial = self.shapes[x]
        rank = len(spatial)
        kernel = kernel or self.choice([1, 2, 3])
        pad = kernel // 2
        if any(s + 2 * pad < kernel for s in spatial):
            raise _NotHereError
        fan = channels // groups * kernel**rank
        inputs = [x, self.const(self.normal(outputs, channels // groups, *[kernel] * rank, std=1.4 / math.sqrt(fan)))]
        if self.chance(0.7):
            inputs.append(self.bias(outputs))
        shape = [outputs, *[(s + 2 * pad - kernel) // stride + 1 for s in spatial]]
        attrs = {"kernel_shape": [kernel] * rank} if self.chance(0.7) else {}
        return self.node("Conv", inputs, shape, pads=[pad] * (2 * rank), strides=[stride] * rank, group=groups, **attrs)

    def linear(self, x: str, outputs: int) -> str:
        """A MatMul over the last axis, with a bias now and then."""
        *leading, inputs = self.shapes[x]
        weight = self.const(self.normal(inputs, outputs, std=1.4 / math.sqrt(inputs)))
        y = self.node("MatMul", [x, weight], [*leading, outputs])
        if self.chance(0.6):
            bias = self.bias(outputs)
            y = self.node("Add", [y, bias] if self.chance(0.5) else [bias, y], [*leading, outputs])
        return y

    def gemm(self, x: str, outputs: int) -> str:
        (inputs,) = self.shapes[x]
        trans = self.integer(0, 1)
        weight = self.normal(inputs, outputs, std=1.4 / math.sqrt(inputs))
        args = [x, self.const(weight.T if trans else weight)]
        if self.opset < 11 or self.chance(0.7):
            args.append(self.bias(outputs))
        return self.node("Gemm", args, [outputs], transB=trans)

    def layer(self, x: str) -> str:
        """Some producing layer on any tensor."""
        rank = len(self.shapes[x])
        if rank == 1:
            return self.gemm(x, self.width()) if self.chance(0.6) else self.linear(x, self.width())
        conv_there = self.dtype != np.float64
        if conv_there and self.chance(0.75):
            return self.conv(x, self.width(), self.choice([1, 1, 3] if min(self.shapes[x][1:]) > 1 else [1]))
        return self.linear(x, self.width())

    def activation(self, x: str) -> str:
        kinds = ["Relu", "Relu", "Sigmoid", "Tanh", "Relu" if self.dtype == np.float64 else "LeakyRelu"]
        return self.same(self.choice(kinds), x) if self.chance(0.6) else x

    def twin(self, x: str) -> str:
        """Another tensor of the same shape: from the pool, a layer on `x`, or a function of `x`."""
        same = [p for p in self.pool if self.shapes[p] == self.shapes[x]]
        if same and self.chance(0.5):
            return self.choice(same)
        rank = len(self.shapes[x])
        if rank > 1 and self.dtype != np.float64 and self.chance(0.6):
            return self.conv(x, self.shapes[x][0], 1)
        if self.chance(0.7):
            return self.linear(x, self.shapes[x][-1])
        return self.same("Sigmoid", x)

    def broadcast_constant(self, x: str, low: float = 0.5, high: float = 1.5, dtype: Any = None) -> str:
        """A constant that broadcasts to `x`: scalar, per channel, per position, full."""
        shape = self.shapes[x]
        kind = self.integer(0, 4)
        if kind == 0:
            dims: tuple[int, ...] = self.choice([(), (1,), (1,) * (len(shape) + 1)])
        elif kind <= 2:
            dims = (shape[0], *[1] * (len(shape) - 1))
            dims = (1, *dims) if self.chance(0.5) else dims
        elif kind == 3:
            dims = (shape[-1],)
        else:
            dims = shape
        values = self.rng.uniform(low, high, dims)
        return self.const(np.asarray(values, self.dtype if dtype is None else dtype))

    def channel_axis(self, x: str, likely: float = 0.6) -> int:
        """An axis, counting the batch as axis 0: the first or the last most often."""
        rank = len(self.shapes[x])
        return int(self.choice([1, rank]) if self.chance(likely) else self.integer(1, rank))

    # -- the whole -----------------------------------------------------------------------------

    def add_input(self, shape: Shape, integers: int = 0) -> str:
        name = f"x{len(self.inputs)}"
        kind = TensorProto.INT64 if integers else helper.np_dtype_to_tensor_dtype(self.dtype)
        batch = self.batch or "batch"
        self.inputs.append(helper.make_tensor_value_info(name, kind, [batch, *shape]))
        self.shapes[name] = shape
        return name

    def leaves(self) -> list[str]:
        read = {i for n in self.nodes for i in n.input}
        return [o for n in self.nodes for o in n.output if o in self.pool and o not in read]


# -- layers ------------------------------------------------------------------------------------


@block("Conv", ranks=(2, 4), weight=3)
def _conv(g: Graph, x: str, op: str) -> str:
    channels = g.shapes[x][0]
    kind = g.integer(0, 3)
    stride = g.choice([1, 1, 2])
    if kind == 1:
        return g.conv(x, channels * g.integer(1, 2), groups=channels, stride=stride)
    if kind == 2:
        groups = g.choice([2, 3, 4])
        return g.conv(g.conv(x, groups * g.integer(1, 3), 1), groups * g.integer(1, 3), groups=groups, stride=stride)
    if kind == 3 and channels % 2 == 0:
        return g.conv(x, 2 * g.integer(1, 4), groups=2)
    return g.conv(x, g.width(), stride=stride)


@block("ConvTranspose", ranks=(2, 4), weight=2)
def _conv_transpose(g: Graph, x: str, op: str) -> str:
    channels, *spatial = g.shapes[x]
    rank, kernel, stride = len(spatial), g.integer(1, 3), g.integer(1, 2)
    groups = g.choice([1, 1, channels, 2 if channels % 2 == 0 else 1])
    per_group = g.integer(1, 3) if groups > 1 else g.width()
    weight = g.normal(channels, per_group, *[kernel] * rank, std=1 / math.sqrt(channels // groups * kernel**rank))
    inputs = [x, g.const(weight)]
    if g.chance(0.6):
        inputs.append(g.bias(per_group * groups))
    shape = [per_group * groups, *[(s - 1) * stride + kernel for s in spatial]]
    return g.node(op, inputs, shape, strides=[stride] * rank, kernel_shape=[kernel] * rank, group=groups)


@block("Gemm", ranks=(1, 1), weight=2)
def _gemm(g: Graph, x: str, op: str) -> str:
    (inputs,), outputs = g.shapes[x], g.width()
    trans_a, trans_b = g.integer(0, 1), g.integer(0, 1)
    alpha, beta = g.choice([1.0, 0.5, 2.0]), g.choice([1.0, 0.5, 0.0])
    weight = g.normal(inputs, outputs, std=1.4 / math.sqrt(inputs) / alpha)
    if g.chance(0.25):  # the weight on the left: W x^T
        other = g.node("Transpose", [x], [inputs], perm=[1, 0]) if not trans_b else x
        left = g.const(weight if trans_a else weight.T)
        args = [left, other] + ([g.const(g.normal(outputs, 1, std=0.3))] if g.chance(0.5) else [])
        if len(args) < 3 and g.opset < 11:
            args.append(g.const(0.0))
        y = g.node(op, args, [outputs], transA=trans_a, transB=trans_b, alpha=alpha, beta=beta)
        return g.node("Transpose", [y], [outputs], perm=[1, 0])
    if trans_a:
        x = g.node("Transpose", [x], [inputs], perm=[1, 0])
    args = [x, g.const(weight.T if trans_b else weight)]
    if g.opset < 11 or g.chance(0.7):
        args.append(g.bias(*g.choice([(outputs,), (1, outputs), (1,), ()])))
    return g.node(op, args, [outputs], transA=trans_a, transB=trans_b, alpha=alpha, beta=beta)


@block("MatMul", weight=2)
def _matmul(g: Graph, x: str, op: str) -> str:
    shape = g.shapes[x]
    kind = g.integer(0, 4)
    if kind == 1 and len(shape) > 1:
        rows = g.width()
        left = g.const(g.normal(rows, shape[-2], std=1 / math.sqrt(shape[-2])))
        return g.node(op, [left, x], [*shape[:-2], rows, shape[-1]])
    if kind == 2 and len(shape) > 2:
        columns = g.width()
        weight = g.const(g.normal(shape[0], *[1] * (len(shape) - 3), shape[-1], columns, std=1 / math.sqrt(shape[-1])))
        return g.node(op, [x, weight], [*shape[:-1], columns])
    if kind >= 3 and len(shape) > 1 and shape[-1] == shape[-2]:  # a tensor and itself
        return g.times(g.node(op, [x, x], shape), 1 / shape[-1])
    if kind == 3 and len(shape) > 1:  # two activations
        other = g.twin(x)
        axes = list(range(1, len(shape) + 1))
        axes[-2:] = [axes[-1], axes[-2]]
        return g.times(g.node(op, [x, g.transpose(other, axes)], [*shape[:-1], shape[-2]]), 1 / shape[-1])
    return g.linear(x, g.width())


@block("FusedConv", ranks=(3, 3))
def _fused_conv(g: Graph, x: str, op: str) -> str:
    y = g.conv(x, g.shapes[x][0] if g.chance(0.5) else g.width(), g.choice([1, 3]))
    node = g.nodes[-1]
    if len(node.input) == 2:
        node.input.append(g.const(g.normal(g.shapes[y][0], std=0.3)))
        g.nodes.append(g.nodes.pop(g.nodes.index(node)))
    if g.shapes[y] == g.shapes[x] and g.chance(0.6):
        node.input.append(x)
    node.op_type, node.domain = op, MICROSOFT
    node.attribute.append(helper.make_attribute("activation", g.choice(["Relu", "Tanh", "Sigmoid"])))
    return y


@block("FusedGemm", ranks=(1, 1))
def _fused_gemm(g: Graph, x: str, op: str) -> str:
    (inputs,), outputs = g.shapes[x], g.width()
    args = [x, g.const(g.normal(outputs, inputs, std=1 / math.sqrt(inputs))), g.const(g.normal(outputs, std=0.3))]
    return g.node(op, args, [outputs], MICROSOFT, transB=1, activation=g.choice(["Relu", "Tanh"]))


@block("FusedMatMul")
def _fused_matmul(g: Graph, x: str, op: str) -> str:
    *leading, inputs = g.shapes[x]
    outputs = g.width()
    trans = g.chance(0.2)
    weight = g.normal(inputs, outputs, std=1 / math.sqrt(inputs))
    args = [x, g.const(weight.T if trans else weight)]
    return g.node(op, args, [*leading, outputs], MICROSOFT, alpha=0.5, transB=int(trans))


@block("Einsum", weight=2)
def _einsum(g: Graph, x: str, op: str) -> str:
    shape = g.shapes[x]
    letters = "abcdefg"[: len(shape) + 1]
    if len(shape) > 1 and g.chance(0.25):
        summed = letters[g.integer(1, len(shape))]
        if g.chance(0.5):  # one operand
            result = letters.replace(summed, "")
            y = g.node(op, [x], [d for d, c in zip(shape, letters[1:], strict=True) if c != summed],
                       equation=f"{letters}->{result}")  # fmt: skip
            return g.times(y, 0.5)
        y = g.node(op, [x, g.twin(x)], [d for d, c in zip(shape, letters[1:], strict=True) if c != summed],
                   equation=f"{letters}, {letters} -> {letters.replace(summed, '')}")  # fmt: skip
        return g.times(y, 0.3)
    axis, width = g.channel_axis(x), g.width()
    inputs = shape[axis - 1]
    weight = g.normal(inputs, width, std=1 / math.sqrt(inputs))
    result, new = letters.replace(letters[axis], "z"), [*shape[: axis - 1], width, *shape[axis:]]
    if g.chance(0.5):
        return g.node(op, [x, g.const(weight)], new, equation=f"{letters},{letters[axis]}z->{result}")
    return g.node(op, [g.const(weight.T), x], new, equation=f"z{letters[axis]},{letters}->{result}")


@block("LSTM", "GRU", "RNN", ranks=(2, 2), weight=1.5)
def _recurrent(g: Graph, x: str, op: str) -> str:
    steps, inputs = g.shapes[x]
    gates, hidden = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], g.integer(2, 6)
    direction = g.choice(["forward", "reverse", "bidirectional"])
    d = 2 if direction == "bidirectional" else 1
    by_step = g.node("Transpose", [x], [], perm=[1, 0, 2])
    args = [
        by_step,
        g.const(g.normal(d, gates * hidden, inputs, std=1 / math.sqrt(inputs))),
        g.const(g.normal(d, gates * hidden, hidden, std=1 / math.sqrt(hidden))),
        g.const(g.normal(d, 2 * gates * hidden, std=0.3)) if g.chance(0.7) else "",
        "",
        g.const(g.normal(d, g.batch, hidden)) if g.batch and g.chance(0.3) else "",
    ]
    if op == "LSTM":
        args += [g.const(g.normal(d, g.batch, hidden)) if g.batch and g.chance(0.3) else ""]
        args += [g.const(g.normal(d, 3 * hidden, std=0.3)) if g.chance(0.4) else ""]
    while args and not args[-1]:
        args.pop()
    attrs = {"linear_before_reset": 1} if op == "GRU" and g.chance(0.5) else {}
    last = g.chance(0.4)
    outs = g.nodes_out(op, args, [None, ()] if last else [()], hidden_size=hidden, direction=direction, **attrs)
    if last:
        y = g.node("Transpose", [outs[1]], [d, hidden], perm=[1, 0, 2])
        return g.reshape(y, [d * hidden]) if g.chance(0.6) else y
    if d == 1 and g.chance(0.5):
        y = g.squeeze_at(outs[0], 1)
        return g.node("Transpose", [y], [steps, hidden], perm=[1, 0, 2])
    y = g.node("Transpose", [outs[0]], [steps, d, hidden], perm=[2, 0, 1, 3])
    return g.reshape(y, [steps, d * hidden])


def _squeeze_at(self: Graph, x: str, axis: int) -> str:
    """Squeeze an axis of a tensor whose batch does not come first."""
    if self.opset < 13:
        return self.node("Squeeze", [x], [], axes=[axis])
    return self.node("Squeeze", [x, self.const([axis])], [])


Graph.squeeze_at = _squeeze_at  # type: ignore[attr-defined]


@block("Gather")
def _embedding(g: Graph, x: str, op: str) -> str:
    """A table, looked up by numbers that the tensor itself gives, or by an input of integers."""
    rows, width = g.integer(3, 9), g.width()
    if g.chance(0.4):
        ids = g.add_input((g.integer(1, 5),), integers=rows)
    else:
        ids = g.cast(g.times(g.same("Sigmoid", x), rows - 0.01), TensorProto.INT64)
        if math.prod(g.shapes[ids]) * width > _MAX_ELEMENTS or len(g.shapes[ids]) > 3:
            raise _NotHereError
    return g.node(op, [g.const(g.normal(rows, width)), ids], [*g.shapes[ids], width])


@block("Siamese", weight=2)
def _siamese(g: Graph, x: str, op: str) -> str:
    """The same weight in two layers."""
    other = g.twin(x)
    shape = g.shapes[x]
    if len(shape) > 1 and g.dtype != np.float64:
        a = g.conv(x, g.width(), 1)
        node = next(n for n in g.nodes if a in n.output)
        args = [other, *node.input[1:]]
        if len(args) > 2 and g.chance(0.3):
            args[2] = g.const(g.normal(g.shapes[a][0]))
        b = g.nodes_out("Conv", args, [g.shapes[a]], **{a.name: helper.get_attribute_value(a) for a in node.attribute})[
            0
        ]
    else:
        outputs = g.width()
        weight = g.const(g.normal(shape[-1], outputs, std=1 / math.sqrt(shape[-1])))
        a, b = (g.node("MatMul", [t, weight], [*shape[:-1], outputs]) for t in (x, other))
    return g.same("Add", a, b) if g.chance(0.5) else g.concat([a, g.same("Relu", b)], 1)


@block("Residual", weight=3)
def _residual(g: Graph, x: str, op: str) -> str:
    shape = g.shapes[x]
    if len(shape) == 1 or g.dtype == np.float64:
        branch = g.linear(g.activation(g.linear(x, g.width())), shape[-1])
    else:
        branch = g.conv(g.activation(g.conv(x, g.width(), 1)), shape[0], 1)
    return g.activation(g.same("Add", branch, x))


@block("Gate", ranks=(2, 4), weight=2)
def _gate(g: Graph, x: str, op: str) -> str:
    """Squeeze and excitation."""
    if g.dtype == np.float64:
        raise _NotHereError
    rank = len(g.shapes[x])
    pooled = g.node("GlobalAveragePool", [x], [g.shapes[x][0], *[1] * (rank - 1)])
    gate = g.conv(g.same("Relu", g.conv(pooled, g.width(), 1)), g.shapes[x][0], 1)
    return g.same("Mul", x, g.same("Sigmoid", gate))


@block("BatchNormalization", weight=3)
def _batch_norm(g: Graph, x: str, op: str) -> str:
    c = g.shapes[x][0]
    values = [g.normal(c, mean=1, std=0.4), g.normal(c, std=0.3), g.normal(c, std=0.3), g.uniform(0.5, 2.0, c)]
    return g.same(op, x, *[g.const(v) for v in values], epsilon=g.choice([1e-5, 1e-3]))


# -- elementwise -------------------------------------------------------------------------------

_ANY = ("Abs", "Atan", "Asinh", "Celu", "Cos", "Elu", "Erf", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish",
        "Neg", "Relu", "Selu", "Shrink", "Sigmoid", "Sin", "Softplus", "Softsign", "Swish", "Tanh",
        "ThresholdedRelu")  # fmt: skip


@block(*_ANY, weight=0.6)
def _unary(g: Graph, x: str, op: str) -> str:
    return g.same(op, x)


@block("Identity", weight=0.6)
def _identity(g: Graph, x: str, op: str) -> str:
    return g.same(op, x)


@block("Ceil", "Floor", "Round", "Sign", weight=0.4)
def _step(g: Graph, x: str, op: str) -> str:
    return g.same(op, g.times(x, 2.0))


@block("Acos", "Asin", "Atanh", "Cosh", "Exp", "Sinh", "Tan", weight=0.5)
def _of_bounded(g: Graph, x: str, op: str) -> str:
    return g.same(op, g.bounded(x))


@block("Log", "Reciprocal", "Sqrt", weight=0.5)
def _of_positive(g: Graph, x: str, op: str) -> str:
    return g.same(op, g.positive(x, 0.3))


@block("Acosh", weight=0.5)
def _acosh(g: Graph, x: str, op: str) -> str:
    return g.same(op, g.positive(x, 1.2))


@block("IsInf", "IsNaN", weight=0.4)
def _is_odd(g: Graph, x: str, op: str) -> str:
    return g.same("Add", g.cast(g.same(op, x)), x)


@block("Clip", weight=0.6)
def _clip(g: Graph, x: str, op: str) -> str:
    if g.opset < 11:
        return g.same(op, x, min=-0.8, max=1.5)
    return g.same(op, x, g.const(-0.8), g.const(1.5)) if g.chance(0.6) else g.same(op, x, "", g.const(1.5))


@block("Cast", weight=0.6)
def _cast(g: Graph, x: str, op: str) -> str:
    return g.cast(g.cast(g.times(x, 3.0), g.choice([TensorProto.INT32, TensorProto.INT64])))


@block("CastLike", weight=0.6)
def _cast_like(g: Graph, x: str, op: str) -> str:
    return g.same(op, x, g.inputs[0].name if g.inputs[0].type.tensor_type.elem_type != TensorProto.INT64 else x)


@block("Dropout", weight=0.6)
def _dropout(g: Graph, x: str, op: str) -> str:
    return g.same(op, x, g.const(0.3), g.const(np.array(False))) if g.opset >= 12 and g.chance(0.5) else g.same(op, x)


@block("PRelu", weight=0.8)
def _prelu(g: Graph, x: str, op: str) -> str:
    shape = g.shapes[x]
    dims = g.choice([(1,), (shape[0], *[1] * (len(shape) - 1)), (shape[-1],)])
    return g.same(op, x, g.const(g.uniform(0.05, 0.5, *dims)))


def _threshold(g: Graph, x: str) -> str:
    return g.same("Greater", x, g.broadcast_constant(x, -0.5, 0.5))


@block("Not", weight=0.6)
def _not(g: Graph, x: str, op: str) -> str:
    return g.cast(g.same(op, _threshold(g, x)))


@block("And", "Or", "Xor", weight=0.6)
def _logical(g: Graph, x: str, op: str) -> str:
    y = g.twin(x)
    return g.cast(g.same(op, _threshold(g, x), _threshold(g, y)))


@block("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", weight=0.5)
def _comparison(g: Graph, x: str, op: str) -> str:
    if op == "Equal":
        a = g.cast(g.times(x, 2.0), TensorProto.INT32)
        other = g.const(g.rng.integers(-1, 2, (g.shapes[x][0], *[1] * (len(g.shapes[x]) - 1))).astype(np.int32))
        return g.cast(g.same(op, a, other))
    other = g.twin(x) if g.chance(0.5) else g.broadcast_constant(x, -0.5, 0.5)
    return g.same("Mul", g.cast(g.same(op, x, other)), x)


@block("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", weight=0.5)
def _bitwise(g: Graph, x: str, op: str) -> str:
    a = g.cast(g.times(g.same("Sigmoid", x), 9.0), TensorProto.INT32)
    if op == "BitwiseNot":
        return g.times(g.cast(g.same(op, a)), 0.2)
    if g.chance(0.5):
        b = g.const(g.rng.integers(0, 9, (g.shapes[x][0], *[1] * (len(g.shapes[x]) - 1))).astype(np.int32))
    else:
        b = g.cast(g.times(g.same("Sigmoid", g.twin(x)), 9.0), TensorProto.INT32)
    return g.times(g.cast(g.same(op, a, b)), 0.2)


@block("Add", "Sub", "Mul", weight=1.5)
def _arithmetic(g: Graph, x: str, op: str) -> str:
    kind = g.integer(0, 4)
    if kind == 0:
        return g.same(op, x, x)
    if kind <= 2:
        c = g.broadcast_constant(x, -1.5, 1.5)
        return g.same(op, x, c) if g.chance(0.5) else g.node(op, [c, x], g.shapes[x])
    return g.same(op, x, g.twin(x))


@block("Div", "Pow", "Mod", weight=0.6)
def _domain_bound(g: Graph, x: str, op: str) -> str:
    attrs = {"fmod": 1} if op == "Mod" else {}
    if op == "Pow":
        x = g.positive(x, 0.2)
        return g.same(op, x, g.broadcast_constant(x) if g.chance(0.6) else g.bounded(g.twin(x)))
    other = g.broadcast_constant(x) if g.chance(0.6) else g.positive(g.twin(x), 0.5)
    if op == "Div" and g.chance(0.3):
        return g.node(op, [g.broadcast_constant(x), g.positive(x, 0.5)], g.shapes[x])
    return g.same(op, x, other, **attrs)


@block("Max", "Min", "Mean", "Sum", weight=0.8)
def _variadic(g: Graph, x: str, op: str) -> str:
    others = [g.twin(x) if g.chance(0.6) else g.broadcast_constant(x) for _ in range(g.integer(0, 3))]
    return g.same(op, x, *others)


@block("Where", weight=0.8)
def _where(g: Graph, x: str, op: str) -> str:
    y = g.twin(x) if g.chance(0.6) else g.broadcast_constant(x)
    return g.node(op, [_threshold(g, x), *([x, y] if g.chance(0.5) else [y, x])], g.shapes[x])


@block("Outer", ranks=(2, 3))
def _outer(g: Graph, x: str, op: str) -> str:
    """Broadcast of an activation against another one along an axis."""
    axis = g.integer(1, len(g.shapes[x]))
    narrow = g.reduce(g.choice(["ReduceMean", "ReduceMax"]), x, [axis], 1)
    return g.same(g.choice(["Add", "Mul", "Sub"]), x, narrow)


@block("BiasGelu", "FastGelu", "QuickGelu", "Gelu-microsoft", weight=0.6)
def _microsoft_gelu(g: Graph, x: str, op: str) -> str:
    bias = (
        [g.const(g.normal(g.shapes[x][-1], std=0.3))]
        if op == "BiasGelu" or (op == "FastGelu" and g.chance(0.5))
        else []
    )
    return g.same(op.removesuffix("-microsoft"), x, *bias, domain=MICROSOFT)


# -- pools, reductions, normalisations ---------------------------------------------------------


@block("AveragePool", "MaxPool", "LpPool", ranks=(2, 4), weight=0.8)
def _pool(g: Graph, x: str, op: str) -> str:
    channels, *spatial = g.shapes[x]
    if min(spatial) < 2:
        raise _NotHereError
    rank, stride = len(spatial), g.integer(1, 2)
    if op == "LpPool" and g.opset < 11 and stride == 1:
        stride = 2
    shape = [channels, *[(s - 2) // stride + 1 for s in spatial]]
    return g.node(op, [x], shape, kernel_shape=[2] * rank, strides=[stride] * rank)


@block("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", ranks=(2, 4), weight=0.6)
def _global_pool(g: Graph, x: str, op: str) -> str:
    return g.node(op, [x], [g.shapes[x][0], *[1] * (len(g.shapes[x]) - 1)])


_REDUCTIONS = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
               "ReduceProd", "ReduceSum", "ReduceSumSquare")  # fmt: skip


@block(*_REDUCTIONS, ranks=(2, 4), weight=0.5)
def _reduce(g: Graph, x: str, op: str) -> str:
    rank = len(g.shapes[x])
    axes = sorted({g.channel_axis(x, 0.3) for _ in range(g.integer(1, rank - 1))})
    if g.chance(0.3):
        axes = [a - rank - 1 for a in axes] if g.opset >= 11 else axes
    if op in ("ReduceLogSum", "ReduceL2"):
        x = g.positive(x, 0.2)
    if op == "ReduceProd":
        x = g.bounded(x, 1.2)
    y = g.reduce(op, x, axes, g.integer(0, 1))
    return g.same("Tanh", y) if op in ("ReduceL1", "ReduceSum", "ReduceSumSquare") else y


@block("ArgMax", "ArgMin", ranks=(2, 4), weight=0.5)
def _arg(g: Graph, x: str, op: str) -> str:
    axis, keepdims = g.channel_axis(x, 0.3), g.integer(0, 1)
    shape = [1 if i == axis else d for i, d in enumerate(g.shapes[x], 1) if keepdims or i != axis]
    return g.times(g.cast(g.node(op, [x], shape, axis=axis, keepdims=keepdims)), 0.3)


@block("Trilu", ranks=(2, 4), weight=0.6)
def _trilu(g: Graph, x: str, op: str) -> str:
    k = [g.const(np.array(g.integer(-1, 1), np.int64))] if g.chance(0.5) else []
    return g.same(op, x, *k, upper=g.integer(0, 1))


@block("TopK", weight=0.6)
def _top_k(g: Graph, x: str, op: str) -> str:
    axis = g.channel_axis(x)
    shape = list(g.shapes[x])
    shape[axis - 1] = k = g.integer(1, shape[axis - 1])
    if g.opset < 10:
        return g.nodes_out(op, [x], [tuple(shape)] * 2, axis=axis, k=k)[0]
    values, indices = g.nodes_out(op, [x, g.const([k])], [tuple(shape)] * 2, axis=axis)
    return g.times(g.cast(indices), 0.2) if g.chance(0.15) else values


@block("Softmax", "LogSoftmax", "Hardmax", weight=0.7)
def _softmax(g: Graph, x: str, op: str) -> str:
    axis = g.integer(1, len(g.shapes[x]))
    return g.same(op, x, axis=axis if g.opset < 11 or g.chance(0.5) else axis - len(g.shapes[x]) - 1)


@block("InstanceNormalization", ranks=(2, 4), weight=0.7)
def _instance_norm(g: Graph, x: str, op: str) -> str:
    c, *spatial = g.shapes[x]
    if math.prod(spatial) < 3:
        raise _NotHereError
    return g.same(op, x, g.const(g.normal(c, mean=1, std=0.4)), g.const(g.normal(c, std=0.3)), epsilon=0.01)


@block("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization", weight=0.7)
def _layer_norm(g: Graph, x: str, op: str) -> str:
    axis = g.channel_axis(x)
    dims = g.shapes[x][axis - 1 :]
    if op == "SimplifiedLayerNormalization":
        axis, dims = len(g.shapes[x]), g.shapes[x][-1:]
    args = [g.const(g.normal(*dims, mean=1, std=0.4))]
    if op == "LayerNormalization" and g.chance(0.6):
        args.append(g.const(g.normal(*dims, std=0.3)))
    return g.same(op, x, *args, axis=axis if g.chance(0.5) else axis - len(g.shapes[x]) - 1, epsilon=0.01)


@block("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", ranks=(2, 2), weight=0.7)
def _skip_norm(g: Graph, x: str, op: str) -> str:
    scale = g.const(g.normal(g.shapes[x][-1], mean=1, std=0.4))
    return g.same(op, x, g.twin(x), scale, domain=MICROSOFT, epsilon=0.01)


@block("GroupNormalization", ranks=(2, 4), weight=0.7)
def _group_norm(g: Graph, x: str, op: str) -> str:
    c = g.shapes[x][0]
    groups = 2 if c % 2 == 0 else 1
    size = c if g.opset >= 21 else groups
    return g.same(op, x, g.const(g.uniform(0.5, 1.5, size)), g.const(g.normal(size)), num_groups=groups, epsilon=0.01)


@block("LRN", ranks=(3, 3), weight=0.6)
def _lrn(g: Graph, x: str, op: str) -> str:
    return g.same(op, x, size=3)


@block("LpNormalization", weight=0.6)
def _lp_norm(g: Graph, x: str, op: str) -> str:
    return g.same(op, g.positive(x, 0.2), axis=g.channel_axis(x), p=g.integer(1, 2))


@block("CumSum", weight=0.6)
def _cum_sum(g: Graph, x: str, op: str) -> str:
    axis = g.integer(1, len(g.shapes[x]))
    return g.times(g.same(op, x, g.const(np.array(axis, np.int64))), 0.4)


# -- shapes ------------------------------------------------------------------------------------


@block("Flatten", ranks=(1, 4))
def _flatten(g: Graph, x: str, op: str) -> str:
    return g.flatten(x)


@block("Reshape", weight=2)
def _reshape(g: Graph, x: str, op: str) -> str:
    shape = g.shapes[x]
    kind = g.integer(0, 4)
    if kind == 0 and len(shape) > 1:  # join two neighbours
        i = g.integer(0, len(shape) - 2)
        return g.reshape(x, [*shape[:i], shape[i] * shape[i + 1], *shape[i + 2 :]])
    if kind == 1 and len(shape) < 4:  # heads
        i = g.choice([0, len(shape) - 1])
        divisors = [d for d in range(2, shape[i]) if shape[i] % d == 0]
        if divisors:
            d = g.choice(divisors)
            return g.reshape(x, [*shape[:i], d, shape[i] // d, *shape[i + 1 :]])
    if kind == 2 and len(shape) > 1:  # there and back
        flat = g.activation(g.reshape(x, [math.prod(shape)]))
        return g.reshape(flat, shape)
    if kind == 3 and len(shape) < 4:
        return g.reshape(x, g.choice([[*shape, 1], [1, *shape]]))
    return g.reshape(x, [math.prod(shape)])


@block("ViewChain", "Shape", ranks=(1, 4), weight=1.5)
def _view_chain(g: Graph, x: str, op: str) -> str:
    """x.view(x.size(0), -1), or with all sizes computed."""
    shape = g.shapes[x]
    sizes = g.node("Shape", [x])

    def size(axis: int) -> str:
        if g.chance(0.5):
            part = g.node("Gather", [sizes, g.const(np.array(axis, np.int64))], axis=0)
            return g.node("Unsqueeze", [part], axes=[0]) if g.opset < 13 else g.node("Unsqueeze", [part, g.const([0])])
        return g.node("Gather", [sizes, g.const([axis])], axis=0)

    if g.chance(0.5):
        target = g.node("Concat", [size(0), g.const([-1])], axis=0)
        return g.node("Reshape", [x, target], [math.prod(shape)])
    parts = [size(i) for i in range(len(shape) + 1)] if g.chance(0.5) else [size(0), *[g.const([d]) for d in shape]]
    flat = g.activation(g.flatten(x))
    target = g.node("Concat", parts, axis=0)
    return g.node("Reshape", [flat, target], shape)


@block("Size", weight=0.6)
def _size(g: Graph, x: str, op: str) -> str:
    return g.same("Mul", x, g.node("Reciprocal", [g.cast(g.node(op, [g.twin(x)]))]))


@block("Shape", weight=0.5)
def _shape_scale(g: Graph, x: str, op: str) -> str:
    sizes = g.node(op, [x])
    axis = g.integer(1, len(g.shapes[x]))
    part = g.node("Gather", [sizes, g.const(np.array(axis, np.int64))], axis=0)
    return g.same("Div", x, g.cast(part))


@block("Squeeze", "Unsqueeze", weight=0.8)
def _squeeze(g: Graph, x: str, op: str) -> str:
    shape = g.shapes[x]
    ones = [i for i, d in enumerate(shape, 1) if d == 1]
    if op == "Squeeze" and ones and len(shape) > 1:
        return g.squeeze(x, [g.choice(ones)])
    if len(shape) > 3:
        raise _NotHereError
    axis = g.integer(1, len(shape) + 1)
    y = g.unsqueeze(x, [axis])
    return g.squeeze(g.activation(y), [axis]) if op == "Squeeze" else y


@block("Transpose", ranks=(2, 4), weight=1.5)
def _transpose(g: Graph, x: str, op: str) -> str:
    rank = len(g.shapes[x])
    if g.chance(0.5):  # NHWC and back
        y = g.transpose(x, [*range(2, rank + 1), 1])
        y = g.linear(y, g.width()) if g.chance(0.3) else g.activation(y)
        return g.transpose(y, [rank, *range(1, rank)])
    return g.transpose(x, [int(p) + 1 for p in g.rng.permutation(rank)])


@block("Concat", weight=2)
def _concat(g: Graph, x: str, op: str) -> str:
    axis = g.channel_axis(x, 0.8)
    tensors = [x]
    for _ in range(g.integer(0, 2)):
        kind = g.integer(0, 3)
        fitting = [
            p for p in g.pool
            if len(g.shapes[p]) == len(g.shapes[x])
            and all(a == b for i, (a, b) in enumerate(zip(g.shapes[p], g.shapes[x], strict=True), 1) if i != axis)
        ]  # fmt: skip
        tensors.append(x if kind == 0 else g.choice(fitting) if fitting and kind < 3 else g.twin(x))
    return g.concat(tensors, axis)


@block("Split", weight=1.5)
def _split(g: Graph, x: str, op: str) -> str:
    axis = g.channel_axis(x, 0.9)
    size = g.shapes[x][axis - 1]
    parts = [p for p in (2, 3) if size % p == 0]
    if parts and g.chance(0.6):
        p = g.choice(parts)
        outs = g.split(x, axis, [size // p] * p, explicit=g.chance(0.5))
        if g.chance(0.5):
            return g.same(g.choice(["Mul", "Add"]), outs[0], g.same("Sigmoid", outs[-1]))
    elif size > 1:
        first = g.integer(1, size - 1)
        outs = g.split(x, axis, [first, size - first], explicit=True)
    else:
        raise _NotHereError
    g.pool += outs[1:]
    return g.concat([g.activation(o) for o in outs[::-1]], axis) if g.chance(0.5) else outs[0]


@block("Slice", weight=1.2)
def _slice(g: Graph, x: str, op: str) -> str:
    axis = g.channel_axis(x, 0.8)
    size = g.shapes[x][axis - 1]
    if size < 2:
        raise _NotHereError
    start = g.integer(0, size - 1)
    end = g.integer(start + 1, size)
    y = g.slice(x, axis, start, end)
    if g.opset >= 10 and g.chance(0.15) and size > 2:  # strided
        shape = list(g.shapes[x])
        shape[axis - 1] = -(-size // 2)
        bounds = [g.const([v]) for v in (0, size, axis, 2)]
        return g.node(op, [x, *bounds], shape)
    return y


@block("Gather", weight=1.5)
def _gather(g: Graph, x: str, op: str) -> str:
    axis = g.channel_axis(x, 0.8)
    size = g.shapes[x][axis - 1]
    kind = g.integer(0, 3)
    if kind == 0 and len(g.shapes[x]) > 1:
        index = np.array(g.integer(0, size - 1), np.int64)
        return g.node(op, [x, g.const(index)], [d for i, d in enumerate(g.shapes[x], 1) if i != axis], axis=axis)
    if kind == 1:
        chosen = g.rng.permutation(size)
    else:
        chosen = g.rng.integers(-size if g.opset >= 11 else 0, size, g.integer(1, size + 2))
    shape = list(g.shapes[x])
    shape[axis - 1] = len(chosen)
    return g.node(op, [x, g.const(chosen.astype(np.int64))], shape, axis=axis)


@block("Shuffle", ranks=(2, 3), weight=2)
def _shuffle(g: Graph, x: str, op: str) -> str:
    channels, *spatial = g.shapes[x]
    groups = [p for p in (2, 3, 4) if channels % p == 0 and channels > p]
    if not groups:
        raise _NotHereError
    p = g.choice(groups)
    y = g.reshape(x, [p, channels // p, *spatial])
    y = g.transpose(y, [2, 1, *range(3, len(spatial) + 3)])
    return g.reshape(y, [channels, *spatial])


@block("Pad", weight=1.2)
def _pad(g: Graph, x: str, op: str) -> str:
    shape = g.shapes[x]
    rank = len(shape) + 1
    begin, end = np.zeros((2, rank), np.int64)
    for axis in {g.channel_axis(x, 0.7) for _ in range(2)}:
        begin[axis], end[axis] = g.integer(0, 2), g.integer(0, 2)
    mode = "constant"
    if g.chance(0.2) and all(b < d and e < d for b, e, d in zip(begin[1:], end[1:], shape, strict=True)):
        mode = g.choice(["reflect", "edge"])
    new = [int(d + b + e) for d, b, e in zip(shape, begin[1:], end[1:], strict=True)]
    if g.opset < 11:
        return g.node(op, [x], new, pads=[*begin.tolist(), *end.tolist()], mode=mode)
    value = [g.const(0.5)] if mode == "constant" and g.chance(0.4) else []
    if g.opset >= 18 and g.chance(0.6):
        axes = [int(a) for a in g.rng.permutation(np.arange(1, rank))]
        pads = [int(begin[a]) for a in axes] + [int(end[a]) for a in axes]
        args = [x, g.const(pads), *(value or [""]), g.const([a if g.chance(0.5) else a - rank for a in axes])]
        return g.node(op, args, new, mode=mode)
    return g.node(op, [x, g.const([*begin.tolist(), *end.tolist()]), *value], new, mode=mode)


@block("Resize", "Upsample", ranks=(2, 3), weight=1.2)
def _resize(g: Graph, x: str, op: str) -> str:
    channels, *spatial = g.shapes[x]
    factor = g.choice([1, 2])
    scales = np.array([1, 1, *[factor] * len(spatial)], np.float32)
    shape = [channels, *[factor * s for s in spatial]]
    if op == "Upsample":
        return (
            g.node(op, [x], shape, scales=scales.tolist()) if g.opset < 9 else g.node(op, [x, g.const(scales)], shape)
        )
    if g.opset < 11:
        return g.node(op, [x, g.const(scales)], shape)
    roi = "" if g.opset >= 13 or g.chance(0.7) else g.const(np.zeros(0, np.float32))
    if g.batch and g.chance(0.5):
        empty = "" if g.opset >= 13 else g.const(np.zeros(0, np.float32))
        return g.node(op, [x, roi, empty, g.const([g.batch, *shape])], shape)
    if g.opset >= 18 and g.chance(0.4):
        axes = list(range(2, len(shape) + 1))
        return g.node(op, [x, roi, "", g.const(shape[1:])], shape, axes=axes)
    return g.node(op, [x, roi, g.const(scales)], shape)


@block("DepthToSpace", "SpaceToDepth", ranks=(3, 3))
def _depth_space(g: Graph, x: str, op: str) -> str:
    c, h, w = g.shapes[x]
    if op == "SpaceToDepth":
        if h % 2 or w % 2:
            x, h, w = g.slice(g.slice(x, 2, 0, h // 2 * 2), 3, 0, w // 2 * 2), h // 2 * 2, w // 2 * 2
        if not h or not w:
            raise _NotHereError
        return g.node(op, [x], [4 * c, h // 2, w // 2], blocksize=2)
    x = g.conv(x, 4 * g.integer(1, 3), 1) if c % 4 else x
    mode = {"mode": g.choice(["DCR", "CRD"])} if g.opset >= 11 else {}
    return g.node(op, [x], [g.shapes[x][0] // 4, 2 * h, 2 * w], blocksize=2, **mode)


@block("Expand", weight=0.8)
def _expand(g: Graph, x: str, op: str) -> str:
    shape = g.shapes[x]
    rank = len(shape)
    axis = g.integer(1, rank)
    narrow = g.reduce("ReduceMean", x, [axis], 1)
    target = [1, *shape] if g.chance(0.7) else [1, *[d if i == axis else 1 for i, d in enumerate(shape, 1)]]
    y = g.node(op, [narrow, g.const(target)], shape)
    return g.same("Mul", y, x) if g.chance(0.5) else y


@block("Tile", weight=0.8)
def _tile(g: Graph, x: str, op: str) -> str:
    axis = g.channel_axis(x, 0.8)
    repeats = [1] * (len(g.shapes[x]) + 1)
    repeats[axis] = 2
    return g.node(op, [x, g.const(repeats)], [d * r for d, r in zip(g.shapes[x], repeats[1:], strict=True)])


@block("QuantizeLinear", "DequantizeLinear", weight=0.7)
def _quantize(g: Graph, x: str, op: str) -> str:
    if g.chance(0.2) and len(g.shapes[x]) > 1:  # a quantised weight
        c = g.shapes[x][0]
        weight = g.const(g.rng.integers(-90, 90, (g.width(), c, *[1] * (len(g.shapes[x]) - 1))).astype(np.int8))
        real = g.node("DequantizeLinear", [weight, g.const(np.array(0.01, np.float32))])
        width = numpy_helper.to_array(next(t for t in g.initializers if t.name == weight)).shape[0] if not (
            g.constant_nodes) else 0  # fmt: skip
        if not width:
            raise _NotHereError
        return g.node("Conv", [x, real], [width, *g.shapes[x][1:]])
    if g.chance(0.2) and g.opset >= 13:  # per channel
        c = g.shapes[x][0]
        scale, zero = g.const(np.full(c, 1 / 32, np.float32)), g.const(np.full(c, 128, np.uint8))
        return g.same("DequantizeLinear", g.same("QuantizeLinear", x, scale, zero, axis=1), scale, zero, axis=1)
    scale, zero = g.const(np.array(1 / 32, np.float32)), g.const(np.array(128, np.uint8))
    return g.same("DequantizeLinear", g.same("QuantizeLinear", x, scale, zero), scale, zero)


# -- whole graphs ------------------------------------------------------------------------------

#: Blocks of these have double kernels in onnxruntime.
_DOUBLE = (
    "Gemm", "MatMul", "Einsum", "Residual", "Siamese", "Sigmoid", "Tanh", "Relu", "Abs", "Neg", "Exp", "Sqrt",
    "Add", "Sub", "Mul", "Div", "Max", "Min", "ReduceMean", "ReduceSum", "ReduceMax", "Flatten", "Reshape", "Squeeze",
    "Unsqueeze", "Transpose", "Concat", "Split", "Slice", "Gather", "Softmax", "Expand", "Identity",
    "LayerNormalization",
    "BatchNormalization", "Where", "Pad", "ViewChain", "Shape",
)  # fmt: skip
_HALF = (*_DOUBLE, "Conv", "ConvTranspose", "PRelu", "MaxPool", "AveragePool", "GlobalAveragePool", "Gate", "Shuffle",
         "Cast", "LeakyRelu", "Clip", "InstanceNormalization", "DepthToSpace", "Sum", "Outer")  # fmt: skip

_RULES: list[tuple[str, ChannelRule]] = registered()


def _block_name(domain: str, op: str) -> str:
    return "Gelu-microsoft" if (domain, op) == (MICROSOFT, "Gelu") else op


def _opsets_of(domain: str, rule: ChannelRule) -> list[int]:
    """The operator sets in which this very rule speaks for its operator."""
    newer = [r.since for d, r in _RULES if (d, r.op_type) == (domain, rule.op_type) and r.since > rule.since]
    found = []
    for opset in range(8, NEWEST_OPSET + 1):
        if domain or rule.op_type in UNKNOWN_TO_ONNX:
            found.append(opset)
            continue
        try:
            schema = defs.get_schema(rule.op_type, opset, "")
        except defs.SchemaError:
            continue
        if not schema.deprecated and opset >= rule.since and all(opset < n for n in newer):
            found.append(opset)
    return found


#: Rules that do not speak in opset 17 come up three times as often, as nothing else exercises them.
_FOCUS = _RULES + 2 * [(domain, rule) for domain, rule in _RULES if 17 not in _opsets_of(domain, rule)]


def _draw_opset(rng: np.random.Generator, allowed: list[int]) -> int:
    weights = np.array([20.0 if o == 17 else 2.0 if 13 <= o <= 20 else 0.5 for o in allowed])
    return int(rng.choice(allowed, p=weights / weights.sum()))


def _build(seed: int, attempt: int) -> onnx.ModelProto:
    rng = np.random.default_rng([seed, attempt, 11])
    # The rule to exercise goes round by the seed, so that every one comes up equally often.
    domain, rule = _FOCUS[seed % len(_FOCUS)]
    focus = [_block_name(domain, rule.op_type)]
    opset = _draw_opset(rng, _opsets_of(domain, rule))
    kind = rng.random()
    usual = attempt > 3 or kind < 0.9
    dtype = np.dtype(np.float32 if usual else np.float64 if kind < 0.95 else np.float16)
    g = Graph(rng, opset, dtype, STATIC_BATCH if rng.random() < 0.35 else None)
    names = [n for n in _BLOCKS if usual or n in (_DOUBLE if dtype == np.float64 else _HALF)]
    if not usual and focus[0] not in names:
        focus = []
    totals = np.array([sum(w for _, _, w in _BLOCKS[n]) for n in names])

    for _ in range(g.integer(1, 3) if g.chance(0.3) else 1):
        rank = 1 + int(rng.choice(4, p=[0.2, 0.25, 0.45, 0.1]))
        if dtype == np.float64:
            rank = min(rank, 2)
        sizes = {1: [8, 5, 12], 2: [6, 7, 8], 3: [4, 5, 6], 4: [3, 3, 4]}[rank]
        x = g.add_input((g.integer(1, 4) if rank > 1 else g.choice(sizes), *[g.choice(sizes) for _ in range(rank - 1)]))
        g.pool.append(g.activation(g.layer(x)))

    goal = g.integer(4, 25)
    steps = 0
    at = g.integer(0, 3)
    while (len(g.nodes) < goal or focus) and steps < 60:
        steps += 1
        forced = bool(focus) and steps > at
        name = focus[0] if forced else str(rng.choice(names, p=totals / totals.sum()))
        if _place(g, name):
            if forced:
                focus.pop()
            if g.chance(0.3):
                g.pool.append(g.layer(g.pool[-1]))
            if g.chance(0.3):
                g.pool.append(g.activation(g.pool[-1]))
    return _finish(g)


def _place(g: Graph, name: str) -> bool:
    """Place a block on a tensor of the pool that it fits; tensors that grew too large are pooled first."""
    choices = _BLOCKS[name]
    function, ranks, _ = choices[
        int(g.rng.choice(len(choices), p=np.array([w for _, _, w in choices]) / sum(w for _, _, w in choices)))
    ]
    fitting = [p for p in g.pool if len(g.shapes[p]) in ranks and math.prod(g.shapes[p]) <= _MAX_ELEMENTS]
    state = len(g.nodes), len(g.initializers), len(g.pool), len(g.inputs)
    zero = dict(g._zero_biases)
    try:
        recent = g.chance(0.7)
        x = (fitting[-1] if recent else g.choice(fitting)) if fitting else _adapted(g, ranks)
        y = function(g, x, name)
        if math.prod(g.shapes[y]) > 4 * _MAX_ELEMENTS or not 1 <= len(g.shapes[y]) <= 4 or 0 in g.shapes[y]:
            raise _NotHereError  # noqa: TRY301
    except _NotHereError:
        del g.nodes[state[0] :], g.initializers[state[1] :], g.pool[state[2] :], g.inputs[state[3] :]
        g._zero_biases = zero
        return False
    g.pool.append(y)
    return True


def _adapted(g: Graph, ranks: range) -> str:
    """Bring some tensor to a rank that fits."""
    x = g.choice(g.pool)
    while math.prod(g.shapes[x]) > _MAX_ELEMENTS:
        x = g.reduce("ReduceMean", x, [len(g.shapes[x])], 0 if len(g.shapes[x]) > 1 else 1)
    shape = list(g.shapes[x])
    if len(shape) > ranks[-1]:
        while len(shape) > ranks[-1]:
            shape[-2:] = [shape[-2] * shape[-1]]
        return g.reshape(x, shape)
    # An image from a vector: channels times positions.
    total = math.prod(shape)
    spatial = 4 if len(ranks) and ranks[0] > 1 else 1
    width = g.width()
    wide = g.gemm(g.flatten(x) if len(shape) > 1 else x, width * spatial) if total else x
    rank = ranks[0]
    dims = {1: [width * spatial], 2: [width, 4], 3: [width, 2, 2], 4: [width, 2, 2, 1]}[rank]
    return g.reshape(wide, dims)


def _finish(g: Graph) -> onnx.ModelProto:
    """Let every loose end come to an output: the last ones of their own, the others together."""
    leaves = g.leaves()
    outputs: list[str] = []
    for leaf in leaves[-g.integer(1, 3) :]:
        outputs.append(g.layer(leaf) if g.chance(0.75) and math.prod(g.shapes[leaf]) <= _MAX_ELEMENTS else leaf)
    others = [leaf for leaf in leaves if leaf not in leaves[-3:]][:6]
    flat = []
    for leaf in others:
        while len(g.shapes[leaf]) > 1 and math.prod(g.shapes[leaf]) > 64:
            leaf = g.reduce("ReduceMean", leaf, [len(g.shapes[leaf])], 0)
        flat.append(g.flatten(leaf))
    if flat:
        outputs.append(g.gemm(g.concat(flat, 1) if len(flat) > 1 else flat[0], 3))
    if g.chance(0.1):
        inner = [p for p in g.pool if p not in outputs and any(p in n.output for n in g.nodes)]
        outputs += [g.choice(inner)] if inner else []
    outputs = list(dict.fromkeys(outputs))[:3]
    return _trimmed_model(g, outputs)


def _trimmed_model(g: Graph, outputs: list[str]) -> onnx.ModelProto:
    """Drop what no output needs, and write the rest down."""
    needed, kept = set(outputs), []
    for node in reversed(g.nodes):
        if needed & set(node.output):
            needed |= set(node.input)
            kept.append(node)
    nodes = kept[::-1]
    initializers = [t for t in g.initializers if t.name in needed]
    inputs = [i for i in g.inputs if i.name in needed]
    if not inputs:
        raise GeneratorError
    if g.chance(0.1):  # as old exporters do: weights listed as inputs with defaults
        inputs += [helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in initializers]
    kind = helper.np_dtype_to_tensor_dtype(g.dtype)
    batch = g.batch or "batch"
    infos = [helper.make_tensor_value_info(o, kind, [batch, *g.shapes[o]]) for o in outputs]
    foreign = [
        helper.make_tensor_value_info(o, kind, [batch, *g.shapes[o]])
        for n in nodes if (n.domain or n.op_type in UNKNOWN_TO_ONNX) for o in n.output if o and o not in outputs
    ]  # fmt: skip
    graph = helper.make_graph(nodes, "fuzz", inputs, infos, initializers, value_info=foreign)
    opsets = [helper.make_opsetid("", g.opset)]
    if any(n.domain for n in nodes):
        opsets.append(helper.make_opsetid(MICROSOFT, 1))
    ir_version = 8 if g.opset < 19 else 10
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, producer_name="fuzz")


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    """Load a model with basic optimisations, as the library does."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(model: onnx.ModelProto, *many: Feeds) -> list[list[Array]]:
    """All outputs for each set of inputs."""
    loaded = session(model)
    return [[np.asarray(y) for y in loaded.run(None, feeds)] for feeds in many]


def draw_feeds(model: onnx.ModelProto, seed: int, batch: int = STATIC_BATCH) -> Feeds:
    """Standard normal floats; small integers where the model wants integers."""
    rng = np.random.default_rng([seed, batch, 5])
    constants = {t.name for t in model.graph.initializer}
    feeds: Feeds = {}
    for value in model.graph.input:
        if value.name in constants:
            continue
        tensor = value.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else batch for d in tensor.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        drawn = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 3, shape)
        feeds[value.name] = drawn.astype(dtype)
    return feeds


def is_dynamic(model: onnx.ModelProto) -> bool:
    return any(d.dim_param for i in model.graph.input for d in i.type.tensor_type.shape.dim[:1])


def check_onnx(model: onnx.ModelProto) -> None:
    """Run onnx's full check, as far as onnx knows the operators."""
    if not any(n.op_type in UNKNOWN_TO_ONNX for n in model.graph.node):
        onnx.checker.check_model(model, full_check=True)


def why_invalid(model: onnx.ModelProto, seed: int) -> str:
    """Return what is wrong with a generated graph, '' if nothing is."""
    try:
        check_onnx(model)
        (outputs,) = run(model, draw_feeds(model, seed))
    except Exception as error:  # onnxruntime's classes are not public
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    if not all(np.isfinite(y).all() and np.abs(y).max(initial=0) < 1e4 for y in outputs):
        return "an output is not finite"
    if all(float(np.ptp(y)) < 1e-6 for y in outputs):
        return "the outputs are constant"
    return ""


def random_graph(seed: int) -> onnx.ModelProto:
    """Return a valid random model; the same for the same seed.

    Raises
    ------
    GeneratorError
        If many derived seeds in a row give none.
    """
    reasons = []
    for attempt in range(_ATTEMPTS):
        try:
            model = _build(seed, attempt)
        except (_NotHereError, GeneratorError):
            continue
        reason = why_invalid(model, seed)
        if not reason:
            return model
        reasons.append(reason)
    raise GeneratorError(f"seed {seed}: no valid graph: {reasons[-3:]}")


def operators(model: onnx.ModelProto) -> set[tuple[str, str]]:
    """Domain and name of every operator."""
    return {(n.domain, n.op_type) for n in model.graph.node}
