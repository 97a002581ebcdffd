"""MultiHeadAttention of onnxruntime: queries, keys and values, and a bias for all three."""

import numpy as np

from onnxfold.channels.context import CannotDeclareError, NodeContext
from onnxfold.channels.declarations import Role
from onnxfold.channels.heads import (
    MIXES,
    Heads,
    cut_inside,
    equate_heads,
    heads_on,
    hold,
    inside_heads_on,
    link_per_head,
)
from onnxfold.channels.registry import channel_rule

#: The axis with the heads, by the number of axes.
_BY_RANK = {3: -1, 4: 1}


@channel_rule("MultiHeadAttention", domain="com.microsoft", mixes=MIXES)
def multi_head_attention(node: NodeContext) -> None:
    """Heads lie on the last of three axes, or, those of keys and values in cross attention, have axis 1 of four."""
    count = node.integer("num_heads", 0)
    output = heads_on(node, node.output(), -1, count)
    if node.heads_stay(output.axis):
        _cut_inside(node, output)
        return
    for tensor in filter(None, (node.input(i) for i in range(3))):
        if node.rank(tensor) not in _BY_RANK:
            raise CannotDeclareError("queries, keys and values in one tensor of five axes are not followed")
        equate_heads(node, heads_on(node, tensor, _BY_RANK[node.rank(tensor)], count), output)
    node.count(output.axis, attribute="num_heads", each=output.size)
    link_per_head(node, [node.input(5), node.input(6), node.input(7), *node.outputs[1:]], 1, output)
    if node.input(3):
        _link_bias(node, output)


def _cut_inside(node: NodeContext, output: Heads) -> None:
    """Heads stay; the part of a bias that belongs to values has their dimensions."""
    if node.rank(node.input(2) or node.input(0)) not in _BY_RANK or not node.input(2):
        raise CannotDeclareError("queries, keys and values in one tensor are not followed")
    values = inside_heads_on(node, node.input(2), -1, output.count)
    cut_inside(node, values, output, (node.input(7), node.output(2)))
    if node.input(3):
        bias = node.axis(node.input(3), 0)
        if not node.is_weight(bias.tensor):
            raise CannotDeclareError("its bias is computed at run time")
        width = output.count * output.size
        node.use(bias, Role.BIAS, output.axis, np.arange((node.width(bias) or 0) - width, node.width(bias) or 0))


def _link_bias(node: NodeContext, output: Heads) -> None:
    """Link a bias that is as long as queries, keys and values together."""
    bias = node.axis(node.input(3), 0)
    width = node.width(bias) or 0
    inner = (width - output.count * output.size) // 2  # queries and keys are equally wide
    start = 0
    for size in (inner, inner, width - 2 * inner):
        heads = Heads(bias, output.count, size // output.count, start)
        if node.is_weight(bias.tensor):
            hold(node, heads, Role.BIAS, output)
        else:
            equate_heads(node, heads, output)
        start = heads.stop
