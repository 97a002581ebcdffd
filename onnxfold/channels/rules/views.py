"""Views and repetitions: Reshape and its relatives, Squeeze, Transpose, Expand and Tile."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, takewhile
from math import prod
from operator import mul

import numpy as np

from onnxfold.channels.context import CannotDeclareError, NodeContext, Result, channel_rule
from onnxfold.channels.declarations import Axis
from onnxfold.graph.tensors import Shape

_MIXES = "the reshape cuts this axis into parts that are not whole channels"


@channel_rule("Flatten", mixes=_MIXES, result=Result.VIEW, carries=True)
def flatten(node: NodeContext) -> None:
    """NCHW: position c*H*W + i of the result belongs to channel c; NHWC: position i*C + c."""
    link_reshape(node, node.input(0), node.output())


@channel_rule("Reshape", mixes=_MIXES, result=Result.VIEW, carries=True)
def reshape(node: NodeContext) -> None:
    """As Flatten; the numbers in the target shape that stand for channels follow them."""
    target = node.constant_ints(1, "target shape")
    inferred = [i for i, size in enumerate(target) if size == -1]
    for axis in link_reshape(node, node.input(0), node.output(), inferred):
        if target[axis.axis] > 0:
            node.count(axis, 1, element=axis.axis, each=axis.blocks)


def link_reshape(node: NodeContext, x: str, y: str, inferred: Sequence[int] = ()) -> list[Axis]:
    """Link the axes that a row-major reshape carries over; return the linked axes of the result.

    Channels may be cut into groups where the reshape finds out by itself how long these are: axes `inferred` of `y`.
    """
    linked = []
    for ins, outs in _blocks(node, x, y):
        if not ins or not outs:
            for axis in [*(Axis(x, a) for a in ins), *(Axis(y, a) for a in outs)]:
                node.block(axis, "the sizes before and after it are not known to match; give them with --input-shapes")
            continue
        live = [a for a in ins if node.is_live(Axis(x, a))]
        packed = Axis(x, ins[-1], node.shape(x)[ins[0]] or 0)
        if len(ins) == 1 and len(outs) == 1:
            node.link(Axis(x, ins[0]), Axis(y, outs[0]))
        elif len(ins) == 2 and node.is_live(packed):
            # Groups of channels, each an axis of its own, become channels again.
            _link_part(node, y, outs, outs[0], packed)
        elif len(outs) == 1 and len(live) == 1:
            _link_part(node, x, ins, live[0], Axis(y, outs[0]))
        elif len(ins) == 1 and live:
            # The outermost part: channels in front of their H*W block, heads in front of their width.
            _link_part(node, y, outs, outs[0], Axis(x, ins[0]))
        else:
            groups, channels = node.shape(y)[outs[0]] or 0, node.shape(x)[ins[0]] or 0
            if len(outs) == 2 and outs[1] in inferred and ins[0] in live and channels % groups == 0:
                _link_part(node, x, ins, ins[0], Axis(y, outs[1], groups))
                node.equal_blocks(Axis(x, ins[0]), groups)
            continue
        linked.append(Axis(y, outs[0]))
    return linked


def _link_part(node: NodeContext, tensor: str, axes: list[int], axis: int, flat: Axis) -> None:
    """Link `axis`, one of the row-major `axes` of `tensor`, to the flat axis that holds all of them."""
    sizes = [node.shape(tensor)[a] or 0 for a in axes]
    index = np.indices(sizes)[axes.index(axis)].reshape(-1)
    source = Axis(tensor, axis)
    if node.is_live(flat):
        node.link(flat, source, np.arange(len(index)), index)
    else:
        node.link(source, flat, index, np.arange(len(index)))


def _blocks(node: NodeContext, source: str, result: str) -> Iterator[tuple[list[int], list[int]]]:
    """Split two shapes of equal size into the shortest runs of axes with equal products; axes of size 1 drop out.

    Unknown dimensions are a run of their own if they have the same symbol, or everything behind them is known and of
    equal size. What lies behind others is matched from the end; what remains in the middle are runs with one side only.
    """
    x, y = node.shape(source), node.shape(result)
    symbols = node.view.symbols(source), node.view.symbols(result)
    ins = [i for i, d in enumerate(x) if d != 1]
    outs = [i for i, d in enumerate(y) if d != 1]
    while ins and outs:
        if x[ins[0]] is None or y[outs[0]] is None:
            both = x[ins[0]] is y[outs[0]]
            same_symbol = symbols[0][ins[0]] and symbols[0][ins[0]] == symbols[1][outs[0]]
            rest = _size(x, ins[1:])
            if not both or not (same_symbol or (rest is not None and rest == _size(y, outs[1:]))):
                break
            yield [ins.pop(0)], [outs.pop(0)]
            continue
        counts = _shortest_run([x[i] for i in ins], [y[o] for o in outs])
        if counts is None:
            raise CannotDeclareError("the shapes before and after it cannot be matched; give --input-shapes")
        yield [ins.pop(0) for _ in range(counts[0])], [outs.pop(0) for _ in range(counts[1])]
    while counts := _shortest_run([x[i] for i in reversed(ins)], [y[o] for o in reversed(outs)]):
        run = ins[-counts[0] :], outs[-counts[1] :]
        del ins[-counts[0] :], outs[-counts[1] :]
        yield run
    yield ins, []
    yield [], outs


def _shortest_run(x: Sequence[int | None], y: Sequence[int | None]) -> tuple[int, int] | None:
    """Return how many of the first sizes of both have equal products, as few as possible; None if none are known to."""
    known = (takewhile(lambda size: size is not None, sizes) for sizes in (x, y))
    ends, others = (list(accumulate(sizes, mul)) for sizes in known)
    common = next((end for end in ends if end in others), None)
    return None if common is None else (ends.index(common) + 1, others.index(common) + 1)


def _size(shape: Shape, axes: list[int]) -> int | None:
    """Return the product of some dimensions, None if one is unknown."""
    dims = [shape[a] for a in axes]
    return None if None in dims else prod(d or 0 for d in dims)


def _axes(node: NodeContext, rank: int) -> set[int]:
    """Return the axes that a node names, as attribute or input."""
    axes = node.constant_ints(1, "list of axes") if node.input(1) else node.integers("axes")
    return {a % rank for a in axes}


@channel_rule("Squeeze", result=Result.VIEW, carries=True)
def squeeze(node: NodeContext) -> None:
    """Axes of size 1 vanish."""
    shape = node.shape(node.input(0))
    gone = _axes(node, len(shape)) or {i for i, d in enumerate(shape) if d == 1}
    node.carry(sorted({*range(len(shape))} - gone), range(len(shape)))


@channel_rule("Unsqueeze", result=Result.VIEW, carries=True)
def unsqueeze(node: NodeContext) -> None:
    """Axes of size 1 appear."""
    rank = node.rank(node.output())
    node.carry(range(rank), sorted({*range(rank)} - _axes(node, rank)))


@channel_rule("Transpose", carries=True)
def transpose(node: NodeContext) -> None:
    """Axis i of the result is axis perm[i] of the input."""
    x, y = node.input(0), node.output()
    perm = node.integers("perm", reversed(range(node.rank(x))))
    for place, axis in enumerate(perm):
        node.link(node.axis(x, axis), node.axis(y, place))


@channel_rule("Expand", mixes="its target size is computed at run time", carries=True)
def expand(node: NodeContext) -> None:
    """Axes of equal size pass through, and the target shape counts them; axes of size 1 stretch."""
    x, y = node.input(0), node.output()
    target = node.constant(1)
    rank, out = node.shape(x), node.shape(y)
    for i in (i for i in range(1, len(rank) + 1) if rank[-i] not in (1, None)):
        source, result = Axis(x, len(rank) - i), Axis(y, len(out) - i)
        node.link(source, result)
        if target is None:
            node.block(result, "its target size is computed at run time")
        elif i <= len(target) and int(target[-i]) != 1:
            node.count(result, 1, element=len(target) - i)


@channel_rule("Tile", mixes="it repeats this axis a number of times that is computed at run time")
def tile(node: NodeContext) -> None:
    """Position j of the result is position j modulo the width of the input.

    An axis that comes out as wide as it went in is not repeated, though the repeats of others are computed.
    """
    x, y = node.input(0), node.output()
    repeats = node.constant_ints(1, "list of repeats") if node.is_weight(node.input(1)) else None
    for axis in range(node.rank(x)):
        width, result = node.width(node.axis(x, axis)), node.width(node.axis(y, axis))
        if repeats[axis] == 1 if repeats is not None else width is not None and width == result:
            node.link(node.axis(x, axis), node.axis(y, axis))
        elif repeats is not None and width is not None and result is not None:
            index = np.tile(np.arange(width), repeats[axis])
            node.link(node.axis(x, axis), node.axis(y, axis), index, None)
