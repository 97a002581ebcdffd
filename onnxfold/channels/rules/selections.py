"""Positions that are put side by side, cut, picked, or padded: Concat, Split, Slice, Gather, Pad."""

import numpy as np

from onnxfold.channels.context import CannotDeclareError, NodeContext, channel_rule
from onnxfold.channels.declarations import Axis, Positions, Role


@channel_rule(
    "Concat",
    mixes="on this axis it joins parts of which one has an unknown width; give it with --input-shapes",
    carries=True,
)
def concat(node: NodeContext) -> None:
    """Place inputs one behind the other on one axis, side by side on the others."""
    y = node.output()
    axis = node.integer("axis", 1) % node.rank(y)
    for x in node.inputs:
        node.link_all(x, y, but=[axis])
    widths = [node.width(node.axis(x, axis)) for x in node.inputs]
    if None in widths:
        return
    offset = 0
    for x, width in zip(node.inputs, widths, strict=True):
        node.link(node.axis(x, axis), node.axis(y, axis), None, np.arange(offset, offset + (width or 0)))
        offset += width or 0


@channel_rule("Split", since=1, carries=True)
@channel_rule("Split", since=13, carries=True)
def split(node: NodeContext) -> None:
    """Outputs are consecutive ranges of the axis; each size, before opset 13 of an attribute, counts its own output."""
    x = node.input(0)
    sizes = 1 if node.version >= 13 else "split"
    axis = node.integer("axis", 0) % node.rank(x)
    source, offset = node.axis(x, axis), 0
    for element, y in enumerate(node.outputs):
        node.link_all(x, y, but=[axis])
        width = node.width(node.axis(y, axis))
        if width is None:
            raise CannotDeclareError("the width of the split axis is unknown; give it with --input-shapes")
        node.link(source, node.axis(y, axis), np.arange(offset, offset + width), None)
        node.count(node.axis(y, axis), sizes, element=element)
        offset += width


_CUTS = "a strided or computed slice takes single positions out of this axis"


@channel_rule("Slice", since=1, mixes=_CUTS, carries=True)
@channel_rule("Slice", since=10, mixes=_CUTS, carries=True)
def slice_axes(node: NodeContext) -> None:
    """A cut axis of the result is the range start:end of the input's; both bounds count it.

    Bounds, axes and steps are inputs 1 to 4, before opset 10 attributes.
    """
    x, y = node.input(0), node.output()
    if node.input(3) and not node.is_weight(node.input(3)):
        raise CannotDeclareError("which axes it cuts is computed at run time")
    places: tuple[str | int, ...] = (1, 2) if node.version >= 10 else ("starts", "ends")
    count = (node.shape(node.input(1))[0] or 0) if node.version >= 10 else len(node.integers("starts"))
    axes = node.constant_ints(3, "axes") if node.input(3) else node.integers("axes", range(count))
    node.link_all(x, y, but=axes)
    if not all(node.is_constant(place) for place in places if isinstance(place, int)):
        return
    bounds = [node.integers(p) if isinstance(p, str) else node.constant_ints(p, "bounds") for p in places]
    steps = node.constant_ints(4, "steps") if node.input(4) else [1] * len(axes)
    for element, (start, end, axis, step) in enumerate(zip(*bounds, axes, steps, strict=True)):
        source, result = node.axis(x, axis), node.axis(y, axis)
        width = node.width(source)
        if width is not None and step == 1:
            first, last, _ = slice(start, end).indices(width)
            node.link(source, result, np.arange(first, max(first, last)), None)
            for place, bound in zip(places, (first, last), strict=True):
                node.count(source, place, stop=bound, element=element)


@channel_rule("Gather", mixes="it picks single positions of this axis", carries=True)
def gather(node: NodeContext) -> None:
    """Carry all axes but the gathered one over; constant indices in one dimension renumber that one too.

    Case 1: a constant table (embedding) produces its other axes. Case 2: constant indices (channel
    shuffle) select channels.
    """
    data, indices, y = node.input(0), node.input(1), node.output()
    rank, index_rank = node.rank(data), node.rank(indices)
    axis = node.integer("axis", 0) % rank
    for source in range(rank):
        if source != axis:
            result = Axis(y, source if source < axis else source + index_rank - 1)
            node.hold(Axis(data, source), Role.PRODUCER, result)
            if node.is_weight(data):
                node.rotatable(result)
    chosen = node.constant(1)
    if chosen is not None and chosen.ndim == 1 and not node.is_weight(data):
        source_axis, result = Axis(data, axis), Axis(y, axis)
        width = node.width(source_axis)
        if width is not None:
            _follow(node, source_axis, result, chosen % width)
            node.select(result, source_axis, input_index=1)
    elif chosen is None:
        for i in range(index_rank):
            node.link(Axis(indices, i), Axis(y, axis + i))


def _follow(node: NodeContext, source: Axis, result: Axis, chosen: Positions) -> None:
    """Link positions to those that they are copied from; heads that are repeated one by one stand for their copies."""
    times = len(chosen) // max(node.width(source) or 0, 1)
    if times > 1 and np.array_equal(chosen, np.repeat(np.arange(node.width(source) or 0), times)):
        node.repeat(source, result, chosen, np.arange(len(chosen)))
    else:
        node.link(source, result, chosen, None)


_PADS = "it pads this axis with values of other positions"


@channel_rule("Pad", since=1, mixes=_PADS)
@channel_rule("Pad", since=11, mixes=_PADS)
def pad(node: NodeContext) -> None:
    """Input position i is position begin + i of the result; what is added is constant, hence foldable.

    Amounts are input 1, before opset 11 an attribute; from opset 18 on input 3 may name the padded axes.
    """
    x, y = node.input(0), node.output()
    amounts: str | int = 1 if node.version >= 11 else "pads"
    pads = node.integers("pads") if amounts == "pads" else node.constant_ints(1, "padding")
    axes = node.constant_ints(3, "list of axes") if node.input(3) else list(range(node.rank(x)))
    places = {axis % node.rank(x): i for i, axis in enumerate(axes)}
    for axis in range(node.rank(x)):
        source, result, place = node.axis(x, axis), node.axis(y, axis), places.get(axis)
        before, after = (0, 0) if place is None else (pads[place], pads[place + len(axes)])
        width = node.width(source)
        if place is None or (before, after) == (0, 0):
            node.link(source, result)
        elif width is not None and before >= 0 and after >= 0 and node.text("mode", "constant") == "constant":
            node.link(source, result, None, np.arange(before, before + width))
            node.count(result, amounts, stop=before, element=place)
            node.count(result, amounts, start=before + width, stop=before + width + after, element=place + len(axes))


@channel_rule("Crop", mixes="it cuts off positions at the ends of this axis")
def crop(node: NodeContext) -> None:
    """Cut the borders of images; of an early ONNX, which onnxruntime still runs."""
    node.carry([0, 1])
