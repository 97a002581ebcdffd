"""Fuse Pad nodes into the convolutions that read them."""

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from onnxfold.graph.nodes import attr_float, attr_ints, attribute, node_key, rewritten, with_input
from onnxfold.graph.patterns import only_reader
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult


@dataclass(frozen=True)
class FusePadding(Pass):
    """Add the amounts of a Pad with zeros to the pads of the Conv that alone reads it.

    Only the spatial axes may be padded, by constant amounts that are not negative, and the Conv must state its own
    pads.
    """

    def run(self, view: GraphView) -> PassResult:
        """Merge all there are."""
        padded: dict[str, NodeProto] = {}
        gone: set[str] = set()
        for conv in view.nodes:
            pad = view.producer(conv.input[0]) if conv.op_type == "Conv" and conv.input else None
            amounts = _amounts(view, pad) if pad is not None and pad.op_type == "Pad" else None
            if pad is None or amounts is None or attribute(conv, "auto_pad", b"NOTSET") != b"NOTSET":
                continue
            own = attr_ints(conv, "pads", [0] * len(amounts))
            pads = [a + b for a, b in zip(own, amounts, strict=True)]
            padded[node_key(conv)] = rewritten(with_input(conv, 0, pad.input[0]), attributes={"pads": pads})
            gone.add(pad.output[0])
        return PassResult(view.substitute(padded, gone))


def _amounts(view: GraphView, pad: NodeProto) -> list[int] | None:
    """Return begins and ends of the spatial axes, None if the Pad does anything else."""
    shape = view.shape(pad.input[0])
    if (
        shape is None
        or only_reader(view, pad.output[0]) is None
        or attribute(pad, "mode", b"constant") != b"constant"
        or attr_float(pad, "value", 0.0)
    ):
        return None
    others = [n for n in pad.input[1:] if n]
    if not all(view.is_weight(n) for n in others):
        return None
    if len(pad.input) > 2 and pad.input[2] and np.any(view.weight(pad.input[2])):
        return None
    rank = len(shape)
    pads = view.weight(pad.input[1]) if len(pad.input) > 1 else np.array(attr_ints(pad, "pads"))
    axes = view.weight(pad.input[3]) % rank if len(pad.input) > 3 and pad.input[3] else np.arange(rank)
    amounts = np.zeros((2, rank), np.int64)
    amounts[:, axes.reshape(-1)] = pads.reshape(2, -1)
    if amounts[:, :2].any() or (amounts < 0).any():
        return None
    return [int(a) for a in amounts[:, 2:].reshape(-1)]
