"""ConvTranspose in 1, 2 and 3 dimensions: dense, depthwise, grouped."""

import numpy as np

from onnxfold.channels.context import CannotDeclareError, NodeContext
from onnxfold.channels.declarations import Axis, Role
from onnxfold.channels.operators import Lengths, Linear
from onnxfold.channels.registry import channel_rule
from onnxfold.channels.rules.conv import bias_axis


def transposed_convolution(node: NodeContext) -> Linear:
    """Every input element meets the filters of its channel."""
    w = node.input(1)
    products = (Lengths(node.input(0)), Lengths(w, 1))
    if not node.is_weight(w):
        return Linear(products)
    group = node.integer("group", 1)
    depthwise = node.shape(w)[0] == group > 1
    return Linear(products, w, Axis(w, 1, group), bias_input=2, is_depthwise=depthwise)


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
    x, w, y = node.input(0), node.input(1), node.output()
    if not node.is_weight(w):
        raise CannotDeclareError(f"its weight '{w}' is computed at run time")
    group = node.integer("group", 1)
    in_channels, out_per_group = (d or 0 for d in node.shape(w)[:2])
    channels_in, channels_out = node.axis(x, 1), node.axis(y, 1)
    node.link(node.axis(x, 0), node.axis(y, 0))
    if group == 1:
        node.use(node.axis(w, 0), Role.CONSUMER, channels_in)
        node.use(node.axis(w, 1), Role.PRODUCER, channels_out)
    elif group == in_channels:
        node.use(node.axis(w, 0), Role.PRODUCER, channels_in)
        node.link(channels_in, channels_out, np.repeat(np.arange(group), out_per_group))
        node.count(channels_in, attribute="group")
    else:
        node.use(node.axis(w, 0), Role.CONSUMER, channels_in)
        node.use(node.axis(w, 1, blocks=group), Role.PRODUCER, channels_out)
        node.equal_blocks(channels_in, group)
        node.equal_blocks(channels_out, group)
    if node.input(2):
        bias_axis(node, 2, y)
