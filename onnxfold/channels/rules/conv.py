"""Conv in 1, 2 and 3 dimensions: dense, depthwise (any multiplier), grouped."""

import numpy as np

from onnxfold.channels.context import CannotDeclareError, NodeContext
from onnxfold.channels.declarations import Axis, Role
from onnxfold.channels.operators import Lengths, Linear, Window
from onnxfold.channels.registry import channel_rule


def convolution(node: NodeContext) -> Linear:
    """Every output element is a sum over one filter."""
    w = node.input(1)
    products = (Lengths(node.output()), Lengths(w, 1))
    if not node.is_weight(w):
        return Linear(products)
    depthwise = node.rank(w) > 2 and node.shape(w)[1] == 1
    parts = node.integer("group", 1)
    return Linear(
        products, w, Axis(w, 0), bias_input=2, is_depthwise=depthwise, window=_window(node), convolved_parts=parts
    )


def _window(node: NodeContext) -> Window | None:
    """Return the window that a position reads; None where padding is chosen at run time."""
    mode = node.text("auto_pad", "NOTSET")
    if mode not in ("NOTSET", "VALID", ""):
        return None
    kernel = tuple(d or 0 for d in node.shape(node.input(1))[2:])
    ones, zeros = [1] * len(kernel), [0] * len(kernel)
    pads = node.integers("pads", zeros * 2)[: len(kernel)] if mode != "VALID" else zeros
    strides, dilations = (node.integers(name, ones) for name in ("strides", "dilations"))
    return Window(kernel, tuple(strides), tuple(dilations), tuple(pads), node.integer("group", 1))


@channel_rule("Conv", mixes="a convolution mixes neighbouring positions of its spatial axes", computes=convolution)
def conv(node: NodeContext) -> None:
    """W is (M, C/group, k...): axis 0 produces the outputs, axis 1 consumes the inputs.

    Case 1, group = 1: plain. Case 2, depthwise: outputs g*m .. g*m+m-1 belong to input g, nothing is summed over
    channels, so the filters are rows only and `group` counts the channels. Case 3, grouped: the
    columns of input channel j*(C/group)+t lie in the j-th block of axis 0; all blocks stay equal.
    """
    x, w, y = node.input(0), node.input(1), node.output()
    if not node.is_weight(w):
        raise CannotDeclareError(f"its weight '{w}' is computed at run time")
    group = node.integer("group", 1)
    out_channels, in_per_group = (d or 0 for d in node.shape(w)[:2])
    channels_in, channels_out = node.axis(x, 1), node.axis(y, 1)
    node.link(node.axis(x, 0), node.axis(y, 0))
    node.use(node.axis(w, 0), Role.PRODUCER, channels_out)
    if group == 1:
        node.use(node.axis(w, 1), Role.CONSUMER, channels_in)
        node.rotatable(channels_out)
    elif in_per_group == 1:
        multiplier = out_channels // group
        node.link(channels_in, channels_out, np.repeat(np.arange(group), multiplier))
        node.count(channels_in, attribute="group")
    else:
        node.use(node.axis(w, 1, blocks=group), Role.CONSUMER, channels_in)
        node.equal_blocks(channels_in, group)
        node.equal_blocks(channels_out, group)
    if node.input(2):
        bias_axis(node, 2, channels_out.tensor)


def bias_axis(node: NodeContext, index: int, result: str) -> None:
    """Declare a bias vector that is added along axis 1 of the result."""
    bias = node.input(index)
    if node.is_weight(bias):
        node.use(node.axis(bias, 0), Role.BIAS, node.axis(result, 1))
    else:
        node.link(node.axis(bias, 0), node.axis(result, 1))
