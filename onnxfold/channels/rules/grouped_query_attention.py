"""GroupQueryAttention of onnxruntime: query heads that share heads of keys and values, with a cache."""

from onnxfold.channels.context import CannotDeclareError, NodeContext
from onnxfold.channels.heads import MIXES, Heads, equate_heads, heads_on, link_per_head, share
from onnxfold.channels.registry import channel_rule

_SCALES = (12, 13)


@channel_rule("GroupQueryAttention", domain="com.microsoft", mixes=MIXES)
def grouped_query_attention(node: NodeContext) -> None:
    """Queries, keys and values lie on three last axes, or behind each other on one; caches have an axis of heads."""
    count, shared = node.integer("num_heads", 0), node.integer("kv_num_heads", 0)
    output = heads_on(node, node.output(), -1, count)
    if node.heads_stay(output.axis):
        raise CannotDeclareError("keys and values have one size here: what lies inside heads stays")
    if node.input(1):
        queries = heads_on(node, node.input(0), -1, count)
        keys, values = (heads_on(node, node.input(i), -1, shared) for i in (1, 2))
    else:
        packed = heads_on(node, node.input(0), -1, count + 2 * shared)
        queries = Heads(packed.axis, count, packed.size)
        keys = Heads(packed.axis, shared, packed.size, queries.stop)
        values = Heads(packed.axis, shared, packed.size, keys.stop)
    equate_heads(node, queries, output)
    equate_heads(node, keys, values)
    share(node, output, keys)
    node.count(output.axis, attribute="num_heads", each=output.size)
    node.count(keys.axis, attribute="kv_num_heads", start=keys.start, stop=keys.stop, each=keys.size)
    link_per_head(node, [node.input(3), node.input(4), node.output(1), node.output(2)], 1, keys)
    link_per_head(node, [node.input(10), node.output(3)], 1, output)
    link_per_head(node, [node.input(11)], 0, output)
    for scale in filter(None, map(node.input, _SCALES)):
        if any(size != 1 for size in node.shape(scale)):
            node.block(keys.axis, "its cache of keys and values is quantised with a scale per channel")
