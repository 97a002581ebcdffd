"""RotaryEmbedding of ONNX and of onnxruntime: pairs of positions within a head are turned."""

from onnxfold.channels.context import CannotDeclareError, NodeContext
from onnxfold.channels.heads import equate_heads, heads_on
from onnxfold.channels.registry import channel_rule

_MIXES = "it turns pairs of positions on this axis"


@channel_rule("RotaryEmbedding", since=23, mixes=_MIXES)
def rotary_embedding(node: NodeContext) -> None:
    """Input 1 holds the cosines."""
    _follow(node, node.input(1))


@channel_rule("RotaryEmbedding", domain="com.microsoft", mixes=_MIXES)
def microsoft_rotary_embedding(node: NodeContext) -> None:
    """Input 1 holds positions, input 2 the cosines."""
    _follow(node, node.input(2))


def _follow(node: NodeContext, cosines: str) -> None:
    """Heads have axis 1 of four, or lie on the last one of three; there a table of cosines is half as wide as a head.

    It is narrower where only a part of a head is turned, which the attribute then says.
    """
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
        node.count(heads.axis, attribute="num_heads", each=heads.size)
