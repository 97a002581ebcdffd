"""DepthToSpace and SpaceToDepth: a channel on one side is a block of channels on the other."""

import numpy as np

from onnxfold.channels.context import CannotDeclareError, NodeContext
from onnxfold.channels.registry import channel_rule

_MIXES = "it moves pixels between this axis and the channels"


@channel_rule("DepthToSpace", mixes=_MIXES)
def depth_to_space(node: NodeContext) -> None:
    """DCR: input channel b*C + c makes output channel c; CRD: input channel c*blocksize^2 + b."""
    mode = node.value("mode", b"DCR")
    _link(node, deep=node.input(0), shallow=node.output(), channel_first=mode == b"CRD")


@channel_rule("SpaceToDepth", mixes=_MIXES)
def space_to_depth(node: NodeContext) -> None:
    """Output channel b*C + c is made from input channel c."""
    _link(node, deep=node.output(), shallow=node.input(0), channel_first=False)


def _link(node: NodeContext, *, deep: str, shallow: str, channel_first: bool) -> None:
    node.link(node.axis(node.input(0), 0), node.axis(node.output(), 0))
    channels = node.width(node.axis(shallow, 1))
    if channels is None:
        raise CannotDeclareError("its channel count is unknown; give it with --input-shapes")
    block = node.integer("blocksize", 1) ** 2
    index = np.repeat(np.arange(channels), block) if channel_first else np.tile(np.arange(channels), block)
    if deep == node.input(0):
        node.link(node.axis(deep, 1), node.axis(shallow, 1), None, index)
    else:
        node.link(node.axis(shallow, 1), node.axis(deep, 1), index, None)
