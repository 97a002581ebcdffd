"""Attention of onnxruntime, which holds the weights of queries, keys and values itself."""

from onnxfold.channels.context import CannotDeclareError, NodeContext
from onnxfold.channels.declarations import Axis, Role
from onnxfold.channels.heads import MIXES, Heads, heads_on, hold, keep_whole, link_per_head
from onnxfold.channels.operators import Lengths, Linear
from onnxfold.channels.registry import channel_rule


def projections(node: NodeContext) -> Linear:
    """Queries, keys and values are one product, whose channels are followed in the rule alone."""
    weight = node.input(1)
    return Linear((Lengths(node.input(0)), Lengths(weight, 1)), weight if node.is_weight(weight) else "")


@channel_rule("Attention", domain="com.microsoft", mixes=MIXES, computes=projections)
def self_attention(node: NodeContext) -> None:
    """The weight's columns are queries, keys and values behind each other; `past` is (2, batch, heads, ...)."""
    x, weight, bias = (node.input(i) for i in range(3))
    if not node.is_weight(weight) or (bias and not node.is_weight(bias)):
        raise CannotDeclareError("its weight is computed at run time")
    count = node.integer("num_heads", 0)
    output = heads_on(node, node.output(), -1, count)
    if node.heads_stay(output.axis):
        raise CannotDeclareError("queries, keys and values are one weight: what lies inside heads stays")
    keep_whole(node, output)
    node.use(node.axis(weight, 0), Role.CONSUMER, node.axis(x, -1))
    width = node.width(node.axis(weight, 1)) or 0
    sizes = node.integers("qkv_hidden_sizes") or [width // 3] * 3
    start = 0
    for element, size in enumerate(sizes):
        part = Heads(Axis(weight, 1), count, size // count, start)
        hold(node, part, Role.PRODUCER, output)
        if bias:
            hold(node, Heads(Axis(bias, 0), count, part.size, start), Role.BIAS, output)
        node.count(part.axis, attribute="qkv_hidden_sizes", element=element, start=start, stop=part.stop)
        start = part.stop
    node.count(output.axis, attribute="num_heads", each=output.size)
    link_per_head(node, [node.input(4), node.output(1)], 2, output)
    link_per_head(node, [node.input(5)], 1, output)
