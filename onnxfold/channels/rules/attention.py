"""Attention of ONNX and of onnxruntime, and the rotation of its queries and keys: heads are its channels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onnxfold.channels.context import CannotDeclareError, NodeContext, channel_rule
from onnxfold.channels.declarations import Axis, Lengths, Linear, Positions, Role

#: Why the axes stay that attention does not carry over.
MIXES = "attention sums over this axis, where a merged channel would count only once"


@dataclass(frozen=True)
class Heads:
    """Heads on an axis."""

    axis: Axis
    count: int
    size: int = 1  # positions of each, one behind the other
    start: int = 0  # where the first one begins

    @property
    def stop(self) -> int:
        """The position behind the last one."""
        return self.start + self.count * self.size

    @property
    def firsts(self) -> Positions:
        """The first position of every head."""
        return self.start + self.size * np.arange(self.count)

    @property
    def positions(self) -> Positions:
        """All positions."""
        return np.arange(self.start, self.stop)


def heads_on(node: NodeContext, tensor: str, axis: int, count: int) -> Heads:
    """Return the heads that take up a whole axis."""
    along = node.axis(tensor, axis)
    width = node.width(along)
    if width is None or count < 1 or width % count:
        raise CannotDeclareError(f"the width of '{tensor}' is not known to be {count} heads; give it by --input-shapes")
    return Heads(along, count, width // count)


def keep_whole(node: NodeContext, heads: Heads) -> None:
    """Declare that heads are channels: dropped as a whole, their mean with others means nothing."""
    if heads.size < 1:
        raise CannotDeclareError(f"'{heads.axis.tensor}' is too narrow for {heads.count} heads")
    if heads.size > 1:
        node.link(heads.axis, heads.axis, heads.positions, np.repeat(heads.firsts, heads.size))
    node.keep_apart(heads.axis)


def equate_heads(node: NodeContext, heads: Heads, others: Heads) -> None:
    """Declare that heads on two axes are the same channels."""
    for side in (heads, others):
        keep_whole(node, side)
    node.link(heads.axis, others.axis, heads.firsts, others.firsts)


def share(node: NodeContext, queries: Heads, keys: Heads) -> None:
    """Declare that equally many neighbouring heads of queries, kept whole, belong to every head of keys and values."""
    if queries.count == keys.count:
        node.link(queries.axis, keys.axis, queries.firsts, keys.firsts)
    elif keys.count < 1 or queries.count % keys.count:
        raise CannotDeclareError(f"{queries.count} query heads cannot share {keys.count} heads of keys and values")
    else:
        node.repeat(keys.axis, queries.axis, np.repeat(keys.firsts, queries.count // keys.count), queries.firsts)


def hold(node: NodeContext, entries: Heads, role: Role, heads: Heads) -> None:
    """Declare that a weight holds entries for every head."""
    node.keep_apart(heads.axis)
    node.use(entries.axis, role, heads.axis, entries.positions, np.repeat(heads.firsts, entries.size))


def link_per_head(node: NodeContext, tensors: Sequence[str], axis: int, heads: Heads) -> None:
    """Declare that tensors with one position per head on an axis, and not a single one for all, are cut with them.

    `axis` may be negative; tensors that do not have it hold nothing per head.
    """
    for tensor in filter(None, tensors):
        if node.rank(tensor) >= (axis + 1 if axis >= 0 else -axis):
            along = node.axis(tensor, axis)
            if node.width(along) == heads.count > 1:
                node.link(along, heads.axis, None, heads.firsts)


@channel_rule("Attention", since=23, mixes=MIXES)
def attention(node: NodeContext) -> None:
    """Heads have an axis of their own, (batch, heads, length, size), or lie on the last one of three."""
    flat = node.rank(node.input(0)) == 3
    axis = -1 if flat else 1
    count, shared = (
        node.integer(name, 0) if flat else node.width(node.axis(node.input(i), 1)) or 0
        for i, name in enumerate(("q_num_heads", "kv_num_heads"))
    )
    queries, output = (heads_on(node, tensor, axis, count) for tensor in (node.input(0), node.output()))
    keys, values = (heads_on(node, node.input(i), axis, shared) for i in (1, 2))
    equate_heads(node, queries, output)
    equate_heads(node, keys, values)
    share(node, output, keys)
    if flat:
        node.count(output.axis, "q_num_heads", each=output.size)
        node.count(keys.axis, "kv_num_heads", each=keys.size)
    link_per_head(node, [node.input(3)], -3, output)
    link_per_head(node, [node.input(4), node.input(5), node.output(1), node.output(2)], 1, keys)
    link_per_head(node, [node.output(3)], 1, output)


_SCALES = (12, 13)


@channel_rule("GroupQueryAttention", domain="com.microsoft", mixes=MIXES)
def grouped_query_attention(node: NodeContext) -> None:
    """Queries, keys and values lie on three last axes, or behind each other on one; caches have an axis of heads."""
    count, shared = node.integer("num_heads", 0), node.integer("kv_num_heads", 0)
    output = heads_on(node, node.output(), -1, count)
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
    node.count(output.axis, "num_heads", each=output.size)
    node.count(keys.axis, "kv_num_heads", start=keys.start, stop=keys.stop, each=keys.size)
    link_per_head(node, [node.input(3), node.input(4), node.output(1), node.output(2)], 1, keys)
    link_per_head(node, [node.input(10), node.output(3)], 1, output)
    link_per_head(node, [node.input(11)], 0, output)
    for scale in filter(None, map(node.input, _SCALES)):
        if any(size != 1 for size in node.shape(scale)):
            node.block(keys.axis, "its cache of keys and values is quantised with a scale per channel")


#: The axis with the heads, by the number of axes.
_BY_RANK = {3: -1, 4: 1}


@channel_rule("MultiHeadAttention", domain="com.microsoft", mixes=MIXES)
def multi_head_attention(node: NodeContext) -> None:
    """Heads lie on the last of three axes, or, those of keys and values in cross attention, have axis 1 of four."""
    count = node.integer("num_heads", 0)
    output = heads_on(node, node.output(), -1, count)
    for tensor in filter(None, (node.input(i) for i in range(3))):
        if node.rank(tensor) not in _BY_RANK:
            raise CannotDeclareError("queries, keys and values in one tensor of five axes are not followed")
        equate_heads(node, heads_on(node, tensor, _BY_RANK[node.rank(tensor)], count), output)
    node.count(output.axis, "num_heads", each=output.size)
    link_per_head(node, [node.input(5), node.input(6), node.input(7), *node.outputs[1:]], 1, output)
    if node.input(3):
        _link_bias(node, output)


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
        node.count(part.axis, "qkv_hidden_sizes", element=element, start=start, stop=part.stop)
        start = part.stop
    node.count(output.axis, "num_heads", each=output.size)
    link_per_head(node, [node.input(4), node.output(1)], 2, output)
    link_per_head(node, [node.input(5)], 1, output)


_TURNS = "it turns pairs of positions on this axis"


@channel_rule("RotaryEmbedding", since=23, mixes=_TURNS)
@channel_rule("RotaryEmbedding", domain="com.microsoft", mixes=_TURNS)
def rotary_embedding(node: NodeContext) -> None:
    """Heads have axis 1 of four, or lie on the last one of three; there a table of cosines is half as wide as a head.

    It is narrower where only a part of a head is turned, which the attribute then says. Input 1 holds the cosines; of
    onnxruntime's own operator it holds positions, and input 2 the cosines.
    """
    cosines = node.input(2 if node.node.domain == "com.microsoft" else 1)
    x, y = node.input(0), node.output()
    if node.rank(x) == 4:
        width = node.width(node.axis(x, 1)) or 0
        equate_heads(node, heads_on(node, x, 1, width), heads_on(node, y, 1, width))
        return
    count = node.integer("num_heads", 0)
    if not count:
        size = 2 * (node.shape(cosines)[-1] or 0)
        width = node.width(node.axis(x, -1)) or 0
        if node.integer("rotary_embedding_dim", 0) or not size or width % size:
            raise CannotDeclareError("how many heads it turns is not known")
        count = width // size
    heads = heads_on(node, y, -1, count)
    equate_heads(node, heads_on(node, x, -1, count), heads)
    if node.integer("num_heads", 0):
        node.count(heads.axis, "num_heads", each=heads.size)
