"""Layers that multiply by a weight, and their fused forms."""

from __future__ import annotations

import math

from onnx import helper

from testing.random_graphs.blocks import Blocks
from testing.random_graphs.common import MICROSOFT
from testing.random_graphs.network import Network

place = Blocks()


@place("Conv", ranks=(2, 4), weight=3)
def _conv(g: Network, x: str, op: str) -> str:
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


@place("ConvTranspose", ranks=(2, 4), weight=2)
def _conv_transpose(g: Network, x: str, op: str) -> str:
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


@place("Gemm", ranks=(1, 1), weight=2)
def _gemm(g: Network, x: str, op: str) -> str:
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


@place("MatMul", weight=2)
def _matmul(g: Network, x: str, op: str) -> str:
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


@place("FusedConv", ranks=(3, 3))
def _fused_conv(g: Network, x: str, op: str) -> str:
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


@place("FusedGemm", ranks=(1, 1))
def _fused_gemm(g: Network, x: str, op: str) -> str:
    (inputs,), outputs = g.shapes[x], g.width()
    args = [x, g.const(g.normal(outputs, inputs, std=1 / math.sqrt(inputs))), g.const(g.normal(outputs, std=0.3))]
    return g.node(op, args, [outputs], MICROSOFT, transB=1, activation=g.choice(["Relu", "Tanh"]))


@place("FusedMatMul")
def _fused_matmul(g: Network, x: str, op: str) -> str:
    *leading, inputs = g.shapes[x]
    outputs = g.width()
    trans = g.chance(0.2)
    weight = g.normal(inputs, outputs, std=1 / math.sqrt(inputs))
    args = [x, g.const(weight.T if trans else weight)]
    return g.node(op, args, [*leading, outputs], MICROSOFT, alpha=0.5, transB=int(trans))


@place("Einsum", weight=2)
def _einsum(g: Network, x: str, op: str) -> str:
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
