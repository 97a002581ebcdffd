"""A channel rule for DeformConv, which onnxfold does not know: all that a new operator takes."""

from __future__ import annotations

from onnxfold.channels.context import NodeContext, channel_rule
from onnxfold.channels.declarations import Axis, BiasInput, Lengths, Linear, Role


def samples_times_filters(node: NodeContext) -> Linear:
    """W is (M, C, k...), as of a Conv; the bias is input 3, behind the offsets."""
    w = node.input(1)
    return Linear((Lengths(node.output()), Lengths(w, 1)), w, Axis(w, 0), bias=BiasInput(3))


@channel_rule("DeformConv", since=19, mixes="it reads positions that are computed", computes=samples_times_filters)
def deform_conv(node: NodeContext) -> None:
    """With one group for the filters and one for the offsets; offsets and mask have no channels."""
    x, w, y = node.input(0), node.input(1), node.output()
    node.link(node.axis(x, 0), node.axis(y, 0))
    node.use(node.axis(w, 0), Role.PRODUCER, node.axis(y, 1))
    node.use(node.axis(w, 1), Role.CONSUMER, node.axis(x, 1))
    if node.input(3):
        node.use(node.axis(node.input(3), 0), Role.BIAS, node.axis(y, 1))
