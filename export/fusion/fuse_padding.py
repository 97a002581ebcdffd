"""Fuse Pad nodes into the convolutions that read them."""

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from onnxfold.graph.nodes import attr_float, attr_ints, attribute, rewritten, with_input
from onnxfold.graph.patterns import Match, Mismatch, chain
from onnxfold.graph.view import GraphView
from onnxfold.passes.rewrite import Rewrite


@dataclass(frozen=True)
class FusePadding(Rewrite):
    """Add the amounts of a Pad with zeros to the pads of the Conv that alone reads it.

    Only the spatial axes may be padded, by constant amounts that are not negative, and the Conv must state its own
    pads.
    """

    patterns = (chain("Pad", "Conv"),)

    def replace(self, view: GraphView, match: Match) -> list[NodeProto]:
        """Return the Conv with all pads, on what the Pad reads."""
        pad, conv = match.nodes
        amounts = _amounts(view, pad)
        if attribute(conv, "auto_pad", b"NOTSET") != b"NOTSET":
            raise Mismatch("the Conv chooses its pads itself")
        own = attr_ints(conv, "pads", [0] * len(amounts))
        pads = [a + b for a, b in zip(own, amounts, strict=True)]
        return [rewritten(with_input(conv, 0, pad.input[0]), attributes={"pads": pads})]


def _amounts(view: GraphView, pad: NodeProto) -> list[int]:
    """Return begins and ends of the spatial axes."""
    shape = view.shape(pad.input[0])
    if shape is None or attribute(pad, "mode", b"constant") != b"constant" or attr_float(pad, "value", 0.0):
        raise Mismatch("it does not pad a known number of axes with zeros")
    if not all(view.is_weight(n) for n in pad.input[1:] if n):
        raise Mismatch("what it pads by is computed")
    if len(pad.input) > 2 and pad.input[2] and np.any(view.weight(pad.input[2])):
        raise Mismatch("it does not pad with zeros")
    rank = len(shape)
    pads = view.weight(pad.input[1]) if len(pad.input) > 1 else np.array(attr_ints(pad, "pads"))
    axes = view.weight(pad.input[3]) % rank if len(pad.input) > 3 and pad.input[3] else np.arange(rank)
    amounts = np.zeros((2, rank), np.int64)
    amounts[:, axes.reshape(-1)] = pads.reshape(2, -1)
    if amounts[:, :2].any() or (amounts < 0).any():
        raise Mismatch("it cuts, or pads batch or channels")
    return [int(a) for a in amounts[:, 2:].reshape(-1)]
