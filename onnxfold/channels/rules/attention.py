"""Attention of ONNX, from operator set 23 on."""

from onnxfold.channels.context import NodeContext
from onnxfold.channels.heads import MIXES, cut_inside, equate_heads, heads_on, inside_heads_on, link_per_head, share
from onnxfold.channels.registry import channel_rule


@channel_rule("Attention", since=23, mixes=MIXES)
def attention(node: NodeContext) -> None:
    """Heads have an axis of their own, (batch, heads, length, size), or lie on the last one of three."""
    flat = node.rank(node.input(0)) == 3
    axis = -1 if flat else 1
    count, shared = (
        node.integer(name, 0) if flat else node.width(node.axis(node.input(i), 1)) or 0
        for i, name in enumerate(("q_num_heads", "kv_num_heads"))
    )
    if node.heads_stay(node.axis(node.output(), axis)):
        values, output = (
            inside_heads_on(node, node.input(2), -1, shared),
            inside_heads_on(node, node.output(), -1, count),
        )
        cut_inside(node, values, output, (node.input(5), node.output(2)))
        return
    queries, output = (heads_on(node, tensor, axis, count) for tensor in (node.input(0), node.output()))
    keys, values = (heads_on(node, node.input(i), axis, shared) for i in (1, 2))
    equate_heads(node, queries, output)
    equate_heads(node, keys, values)
    share(node, output, keys)
    if flat:
        node.count(output.axis, attribute="q_num_heads", each=output.size)
        node.count(keys.axis, attribute="kv_num_heads", each=keys.size)
    link_per_head(node, [node.input(3)], -3, output)
    link_per_head(node, [node.input(4), node.input(5), node.output(1), node.output(2)], 1, keys)
    link_per_head(node, [node.output(3)], 1, output)
