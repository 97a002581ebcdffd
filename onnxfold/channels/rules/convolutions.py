"""Convolutions, pooling, resizing, and what moves pixels between channels and space."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from onnxfold.channels.context import CannotDeclareError, NodeContext, channel_rule
from onnxfold.channels.declarations import Axis, BiasInput, Lengths, Linear, Role, Window


def convolution(node: NodeContext) -> Linear:
    """Every output element is a sum over one filter."""
    w = node.input(1)
    products = (Lengths(node.output()), Lengths(w, 1))
    if not node.is_weight(w):
        return Linear(products)
    depthwise = node.rank(w) > 2 and node.shape(w)[1] == 1
    window, is_padded = _window(node)
    covers_all = window.groups == 1 and not is_padded  # every position is inside
    bias = BiasInput(2, takes_constants=covers_all)
    return Linear(products, w, Axis(w, 0), bias=bias, is_depthwise=depthwise, window=window)


def _window(node: NodeContext) -> tuple[Window, bool]:
    """Return the window of a convolution, and whether it may reach beyond the data."""
    mode = node.text("auto_pad", "NOTSET")
    kernel = tuple(d or 0 for d in node.shape(node.input(1))[2:])
    ones, zeros = [1] * len(kernel), [0] * len(kernel)
    strides, dilations = (tuple(node.integers(name, ones)) for name in ("strides", "dilations"))
    if mode.startswith("SAME"):
        totals = _same_pads(node.shape(node.input(0))[2:], kernel, strides, dilations)
        pads = tuple(t // 2 if mode == "SAME_UPPER" else t - t // 2 for t in totals)
        is_padded = not totals or any(totals)
    else:
        explicit = zeros * 2 if mode == "VALID" else node.integers("pads", zeros * 2)
        pads, is_padded = tuple(explicit[: len(kernel)]), any(explicit)
    return Window(kernel, strides, dilations, pads, node.integer("group", 1)), is_padded


def _same_pads(
    sizes: Sequence[int | None], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[int]:
    """Return how much 'SAME' pads every spatial axis in all; empty where that follows from a size that is not known."""
    totals = []
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations, strict=False):
        if size is None and stride > 1:
            return []
        past = 0 if size is None else (size - 1) % stride  # of the last position that a window begins at
        totals.append(max(dilation * (k - 1) - past, 0))
    return totals


def with_activation(operator: Linear) -> Linear:
    """Return an operator of onnxruntime, which does more behind the sum: an activation, or a summand."""
    return replace(operator, is_plain=False, bias=replace(operator.bias, takes_constants=False))


MIXES = "a convolution mixes neighbouring positions of its spatial axes"


@channel_rule("Conv", mixes=MIXES, computes=convolution)
def conv(node: NodeContext) -> None:
    """W is (M, C/group, k...): axis 0 produces the outputs, axis 1 consumes the inputs.

    Case 1, group = 1: plain. Case 2, depthwise: outputs g*m .. g*m+m-1 belong to input g, so the filters are rows only
    and `group` counts the channels. Case 3, grouped: the columns of input channel j*(C/group)+t lie in the j-th block
    of axis 0; all blocks stay equal.
    """
    filters, per_group = (d or 0 for d in node.shape(node.weight(1, "its weight"))[:2])
    group = node.integer("group", 1)
    _convolve(node, (Role.PRODUCER, Role.CONSUMER), filters // group if group > 1 and per_group == 1 else 0)
    if group == 1:
        node.rotatable(node.axis(node.output(), 1))


@channel_rule(
    "FusedConv", domain="com.microsoft", mixes=MIXES, computes=lambda node: with_activation(convolution(node))
)
def fused_conv(node: NodeContext) -> None:
    """Conv, an optional summand as input 3, and an activation; what Conv mixes stays, also where the summand is X."""
    conv(node)
    if node.input(3):
        for axis in (0, 1):
            node.link(node.axis(node.input(3), axis), node.axis(node.output(), axis))
        for tensor in (node.input(0), node.input(3), node.output()):
            for axis in range(2, node.rank(tensor)):
                node.block(node.axis(tensor, axis), MIXES)


def _convolve(node: NodeContext, roles: tuple[Role, Role], own: int) -> None:
    """Declare the roles of the first two axes of the weight; groups of channels stay equally long.

    Where every channel is read by so many filters of its `own`, the first axis holds their rows.
    """
    node.carry([0])
    into, out = node.axis(node.input(0), 1), node.axis(node.output(), 1)
    channels = {Role.CONSUMER: into, Role.PRODUCER: out}
    weight, group = node.input(1), node.integer("group", 1)
    if own:
        node.use(node.axis(weight, 0), Role.PRODUCER, channels[roles[0]])
        node.link(into, out, np.repeat(np.arange(group), own))
        node.count(into, "group")
    else:
        for axis, role in enumerate(roles):
            node.use(node.axis(weight, axis, blocks=group if axis else 1), role, channels[role])
        for side in (into, out) if group > 1 else ():
            node.equal_blocks(side, group)
    if node.input(2):
        node.hold(node.axis(node.input(2), 0), Role.BIAS, out)


def transposed_convolution(node: NodeContext) -> Linear:
    """Every input element meets the filters of its channel."""
    w = node.input(1)
    products = (Lengths(node.input(0)), Lengths(w, 1))
    if not node.is_weight(w):
        return Linear(products)
    group = node.integer("group", 1)
    depthwise = node.shape(w)[0] == group > 1
    return Linear(products, w, Axis(w, 1, group), bias=BiasInput(2), is_depthwise=depthwise)


@channel_rule(
    "ConvTranspose",
    mixes="a transposed convolution mixes neighbouring positions of its spatial axes",
    computes=transposed_convolution,
)
def conv_transpose(node: NodeContext) -> None:
    """W is (C, M/group, k...): axis 0 consumes the inputs, axis 1 produces the outputs.

    Depthwise (group = C > 1): filter c makes outputs c*m .. c*m+m-1 from input c alone, so axis 0
    holds rows of the channel.
    """
    filters, per_group = (d or 0 for d in node.shape(node.weight(1, "its weight"))[:2])
    is_depthwise = node.integer("group", 1) == filters > 1
    _convolve(node, (Role.CONSUMER, Role.PRODUCER), per_group if is_depthwise else 0)


@channel_rule(
    "AveragePool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "LpPool", "MaxPool",
    mixes="pooling mixes neighbouring positions of its spatial axes",
)  # fmt: skip
def pooling(node: NodeContext) -> None:
    """Batch and channels pass through."""
    if node.output(1):
        raise CannotDeclareError("its output Indices numbers elements across channels")
    node.carry([0, 1])


_INTERPOLATES = "it interpolates along this axis"


@channel_rule("Upsample", mixes=_INTERPOLATES)
@channel_rule("Resize", since=10, mixes=_INTERPOLATES)
def upsample(node: NodeContext) -> None:
    """Scales are input 1, of Upsample before version 9 an attribute."""
    attribute = node.value("scales")
    _link_unscaled(node, node.constant(1) if attribute is None else attribute)


@channel_rule("Resize", since=11, mixes=_INTERPOLATES)
def resize(node: NodeContext) -> None:
    """Inputs X, roi, scales, sizes; a size of the channel axis counts channels."""
    x, y = node.input(0), node.output()
    rank = node.rank(x)
    axes = [a % rank for a in node.integers("axes", range(rank))]
    if not node.input(3):
        _link_unscaled(node, node.constant(2), axes)
        return
    sizes = node.constant(3)
    for axis in range(rank):
        source, result = node.axis(x, axis), node.axis(y, axis)
        stays = node.width(source) is not None and node.width(source) == node.width(result)
        if axis not in axes or (stays and (sizes is not None or axis == 0)):
            node.link(source, result)
            if axis in axes and sizes is not None:
                node.count(result, 3, element=axes.index(axis))


def _link_unscaled(node: NodeContext, scales: object, axes: list[int] | None = None) -> None:
    if scales is None:
        raise CannotDeclareError("its scales are computed at run time")
    every = range(node.rank(node.input(0)))
    numbers = np.asarray(scales, np.float64).reshape(-1).tolist()
    factors = dict(zip(every if axes is None else axes, numbers, strict=False))
    node.carry(axis for axis in every if factors.get(axis, 1.0) == 1.0)


_MOVES = "it moves pixels between this axis and the channels"


@channel_rule("DepthToSpace", mixes=_MOVES)
def depth_to_space(node: NodeContext) -> None:
    """DCR: input channel b*C + c makes output channel c; CRD: input channel c*blocksize^2 + b."""
    _link(node, deep=node.input(0), shallow=node.output(), channel_first=node.text("mode", "DCR") == "CRD")


@channel_rule("SpaceToDepth", mixes=_MOVES)
def space_to_depth(node: NodeContext) -> None:
    """Output channel b*C + c is made from input channel c."""
    _link(node, deep=node.output(), shallow=node.input(0), channel_first=False)


def _link(node: NodeContext, *, deep: str, shallow: str, channel_first: bool) -> None:
    node.carry([0])
    channels = node.width(node.axis(shallow, 1))
    if channels is None:
        raise CannotDeclareError("its channel count is unknown; give it with --input-shapes")
    block = node.integer("blocksize", 1) ** 2
    index = np.repeat(np.arange(channels), block) if channel_first else np.tile(np.arange(channels), block)
    if deep == node.input(0):
        node.link(node.axis(deep, 1), node.axis(shallow, 1), None, index)
    else:
        node.link(node.axis(shallow, 1), node.axis(deep, 1), index, None)
