"""Rewrites of views, and of what stands between two, that hide which position of an axis is which."""

from collections.abc import Mapping
from itertools import accumulate, permutations
from math import prod
from operator import mul
from typing import Any

import numpy as np
from onnx import NodeProto, helper

from onnxfold.graph.nodes import attr_int, attr_ints, rewritten
from onnxfold.graph.patterns import Dims, Match, Mismatch, chain, dims, only_reader
from onnxfold.graph.tensors import Array, Shape
from onnxfold.graph.view import GraphView
from onnxfold.language.lookups import NORMS
from onnxfold.passes.base import Rewrite

#: Size that stands for every unknown dimension.
_STAND_IN = 3
#: Sizes that stand for dimensions that are not known as numbers, in two trials.
_STAND_INS = ((3, 5, 7, 11, 13, 17), (5, 3, 13, 7, 19, 11))
_MOST_ELEMENTS = 1 << 20
_MOST_AXES = 5
_VIEWS = "Reshape|Squeeze|Unsqueeze"


class ShufflesToGather(Rewrite):
    """Replace Reshape-Transpose-Reshape by a Gather where it permutes the entries of a single axis.

    Case 1: (N, C, H, W) -> (N, g, C/g, H, W) -> swap -> (N, C, H, W), ShuffleNet's shuffle, in any rank.
    A permutation survives a fold, in which channels of one cluster need not lie in a g x C/g grid any
    more; the Reshapes would not.
    """

    patterns = (chain("Reshape", "Transpose", "Reshape"),)

    def replace(self, view: GraphView, match: Match) -> list[NodeProto]:
        """Return a Gather of the permutation."""
        first, turn, last = match.nodes
        shapes = (_known(view, tensor) for tensor in (first.input[0], first.output[0], last.output[0]))
        start, inner, end = ([_STAND_IN if d is None else d for d in shape] for shape in shapes)
        if start != end or prod(start) != prod(inner) or len(inner) <= len(start):
            raise Mismatch("it does not cut axes apart and put them together again")
        axis = next((i for i, (a, b) in enumerate(zip(start, inner, strict=False)) if a != b), None)
        if axis is None:
            raise Mismatch("it cuts no axis apart")
        # One element per position of the axis suffices if the rest passes through unchanged; check that it does.
        grid = np.arange(prod(start)).reshape(start)
        result = grid.reshape(inner).transpose(_turn(turn, len(inner))).reshape(end)
        permutation = np.moveaxis(result, axis, 0).reshape(start[axis], -1)[:, 0] // prod(start[axis + 1 :])
        if not np.array_equal(np.sort(permutation), np.arange(start[axis])):
            raise Mismatch(f"it does not permute axis {axis}")
        if not np.array_equal(np.take(grid, permutation, axis), result):
            raise Mismatch(f"it permutes more than axis {axis}")
        return [_gather(view, match, axis, "permutation", permutation)]


class RepeatsToGather(Rewrite):
    """Replace Unsqueeze-Expand-Reshape by a Gather where it repeats every position of an axis.

    Case 1: (B, N, S, H) -> (B, N, 1, S, H) -> (B, N, G, S, H) -> (B, N*G, S, H), by which exporters give every query
    head its keys and values. Which heads stay is then a list, whatever computes the target shapes.
    """

    patterns = (chain("Unsqueeze", "Expand", "Reshape"),)

    def replace(self, view: GraphView, match: Match) -> list[NodeProto]:
        """Return a Gather that reads every position several times."""
        start, *others = (_known_dims(view, t) for t in (match.nodes[0].input[0], *(n.output[0] for n in match.nodes)))
        for axis, count in enumerate(start):
            times = others[1][axis + 1] if len(others[1]) == len(start) + 1 else None
            if not isinstance(count, int) or not isinstance(times, int) or times < 2:
                continue
            before, behind = start[: axis + 1], start[axis + 1 :]
            repeated = [[*before, 1, *behind], [*before, times, *behind], [*start[:axis], count * times, *behind]]
            if others == repeated:
                return [_gather(view, match, axis, "repeated", np.repeat(np.arange(count), times))]
        raise Mismatch("it repeats no axis of a known width")


class ViewsToTranspose(Rewrite):
    """Let no view hide which axis is which.

    Case 1: (B, N, S, H) -> (B*N, S, H) -> swap -> (B, N, H, S), as the dynamo exporter transposes keys, is a Transpose;
    so is Unsqueeze, Transpose, Squeeze. Case 2: (S, B, N*H) -> (S, B*N, H) -> swap -> (B, N, S, H), torch's
    MultiheadAttention, is a Reshape that gives heads an axis, and a Transpose.
    """

    patterns = (chain(_VIEWS, "Transpose", _VIEWS),)

    def replace(self, view: GraphView, match: Match) -> list[NodeProto]:
        """Return a Transpose, behind a Reshape where an axis is taken apart."""
        order, other = (_order(view, match.nodes, sizes) for sizes in _STAND_INS)
        if order != other:
            raise Mismatch("which axis is which depends on the sizes of axes")
        source, last = match.nodes[0].input[0], match.nodes[-1]
        result, nodes = last.output[0], []
        if target := _target(view, source, result, order):
            shape = view.add_weight(f"{result}_apart_shape", np.array(target, np.int64))
            apart = view.fresh_name(f"{result}_apart")
            nodes.append(helper.make_node("Reshape", [source, shape], [apart], apart))
            source = apart
        perm = np.argsort(order).tolist()
        return [*nodes, helper.make_node("Transpose", [source], [result], last.name or result, perm=perm)]


class HeadsToAxis(Rewrite):
    """Let norms of single heads see heads and positions on two axes.

    Case 1: (B, S, N*H) -> (B, S*N, H) -> norm over H -> (B, S, N*H), as onnxruntime-genai writes the norms of Qwen3's
    queries and keys, goes through (B, S, N, H). Heads and positions on one axis, of a size that is not known, hide
    which of its positions are which head.
    """

    patterns = (chain("Reshape", "|".join(NORMS), "Reshape"),)

    def replace(self, view: GraphView, match: Match) -> list[NodeProto]:
        """Return the three with the targets of both views rewritten, under names of their own but for the result."""
        first, norm, last = match.nodes
        if attr_int(norm, "axis", -1) not in (-1, len(view.shape(first.output[0]) or ()) - 1) or len(norm.output) > 1:
            raise Mismatch("the norm is not one of the last axis alone")
        size = _row(view, first, last)
        *outer, width = (d or 0 for d in _known(view, first.input[0]))  # 0 copies
        apart, normed = (view.fresh_name(f"{node.output[0]}_apart") for node in (first, norm))
        cut = _reshape(view, first, first.input[0], apart, [*outer, width // size, size])
        inside = rewritten(norm, inputs=[apart, *norm.input[1:]], outputs=[normed], attributes={"axis": -1})
        return [cut, inside, _reshape(view, last, normed, last.output[0], [*outer, width])]


class PackedToSlices(Rewrite):
    """Slice before a Reshape what is gathered behind it.

    Case 1: (B, S, 3*N*H) -> (B, S, 3, N, H) -> Transpose -> Gather of part i, as the attention of ViTs is written,
    becomes a Slice of the part's N*H positions -> (B, S, N, H) -> Transpose. An axis of parts in front of the one with
    the heads hides which positions are which head.
    """

    patterns = (chain("Reshape", "Transpose", "Gather"), chain("Reshape", "Gather"))
    shared = True

    def replace(self, view: GraphView, match: Match) -> list[NodeProto]:
        """Return nodes that slice, reshape and transpose a part."""
        reshape, *turns, gather = match.nodes
        before, after = (_known(view, tensor) for tensor in (reshape.input[0], reshape.output[0]))
        rank, axis = len(after), len(before) - 1
        sizes = [d or 0 for d in after[axis:]]
        if not before or rank <= len(before) or prod(sizes) != before[-1] or not before[-1] or 1 in sizes[:2]:
            raise Mismatch("it does not cut the last axis apart")
        order = _turn(turns[0], rank) if turns else list(range(rank))
        for reader in view.consumers(gather.input[0]):
            picks = reader.op_type == "Gather" and attr_int(reader, "axis", 0) % rank == order.index(axis)
            if not picks or not view.is_weight(reader.input[1]) or view.shape(reader.input[1]) != ():
                raise Mismatch(f"'{gather.input[0]}' is read by other nodes than a Gather of single parts")
        if gather.input[0] in view.output_names or (turns and only_reader(view, reshape.output[0]) is None):
            raise Mismatch("what lies in between is an output, or read by others")
        parts, *heads = sizes
        index = int(view.weight(gather.input[1])) % parts
        result = gather.output[0]
        numbers = {
            "starts": [index * prod(heads)],
            "ends": [(index + 1) * prod(heads)],
            "axes": [axis],
            "shape": [*(size or 0 for size in before[:-1]), *heads],  # 0 copies
        }
        *bounds, shape = (view.add_weight(f"{result}_{key}", np.array(n, np.int64)) for key, n in numbers.items())
        perm = [old - (old > axis) for old in order if old != axis]
        steps: list[tuple[str, list[str], dict[str, Any]]] = [("Slice", bounds, {})]
        if len(heads) > 1:
            steps.append(("Reshape", [shape], {}))
        if perm != sorted(perm):
            steps.append(("Transpose", [], {"perm": perm}))
        source, nodes = reshape.input[0], []
        for number, (op_type, constants, attributes) in enumerate(steps):
            target = result if number == len(steps) - 1 else view.fresh_name(f"{result}_{op_type.lower()}")
            nodes.append(helper.make_node(op_type, [source, *constants], [target], target, **attributes))
            source = target
        return nodes


def _known(view: GraphView, tensor: str) -> Shape:
    shape = view.shape(tensor)
    if shape is None:
        raise Mismatch("a shape is unknown")
    return shape


def _reshape(view: GraphView, node: NodeProto, source: str, result: str, target: list[int]) -> NodeProto:
    """Return a Reshape with another target between other tensors."""
    shape = view.add_weight(f"{result}_shape", np.array(target, np.int64))
    return rewritten(node, inputs=[source, shape], outputs=[result], without=["allowzero"])


def _turn(node: NodeProto, rank: int) -> list[int]:
    return attr_ints(node, "perm", reversed(range(rank)))


def _gather(view: GraphView, match: Match, axis: int, what: str, indices: Array) -> NodeProto:
    """Return the node that reads positions of an axis in place of a match."""
    last = match.nodes[-1]
    result = last.output[0]
    inputs = [match.nodes[0].input[0], view.add_weight(f"{result}_{what}", indices.astype(np.int64))]
    return helper.make_node("Gather", inputs, [result], last.name or result, axis=axis)


def _known_dims(view: GraphView, tensor: str) -> Dims:
    known = dims(view, tensor)
    if known is None or "" in known:
        raise Mismatch(f"a dimension of '{tensor}' is unknown")
    return known


def _order(view: GraphView, match: tuple[NodeProto, ...], sizes: tuple[int, ...]) -> list[int]:
    """Return the axes of the result in the order in which they lie in what the three nodes read."""
    known: dict[str, int] = {}
    start, end = (_concrete(view, tensor, known, sizes) for tensor in (match[0].input[0], match[2].output[0]))
    if not len(start) <= len(end) <= _MOST_AXES or prod(start) > _MOST_ELEMENTS:
        raise Mismatch("it puts axes together, or is too large to try")
    inner = _inner(view, match[0].output[0], known, prod(start))
    if prod(end) != prod(start):
        raise Mismatch("sizes are not those of symbols")
    grid = np.arange(prod(start))
    result = grid.reshape(inner).transpose(_turn(match[1], len(inner))).reshape(end)
    for order in permutations(range(len(end))):
        apart = [end[axis] for axis in order]
        turned = grid.reshape(apart).transpose(np.argsort(order))
        # Without a Reshape axes lie as they are read; with one no axis is put together with others.
        alone = len(start) == len(end)
        is_cut = apart == start if alone else set(accumulate(start, mul)) <= set(accumulate(apart, mul))
        if is_cut and np.array_equal(turned, result):
            return list(order)
    raise Mismatch("it is no Transpose of axes")


def _target(view: GraphView, source: str, result: str, order: list[int]) -> list[int]:
    """Return the target shape that takes axes apart, an empty one where none is."""
    start, end = view.shape(source) or (), view.shape(result) or ()
    if len(start) == len(end):
        return []
    symbols = [*view.symbols(source), *[""] * len(end)]
    target = []
    for place, axis in enumerate(order):
        copies = start[place : place + 1] == (None,) and symbols[place] == view.symbols(result)[axis] != ""
        size = end[axis]
        target.append(size if size is not None else 0 if copies else -1)
    if target.count(-1) > 1:
        raise Mismatch("the shape of its axes cannot be written")
    return target


def _concrete(view: GraphView, tensor: str, known: dict[str, int], sizes: tuple[int, ...]) -> list[int]:
    """Return dimensions with a number for every symbol."""
    dimensions = _known_dims(view, tensor)
    if len(dimensions) > len(sizes):
        raise Mismatch(f"'{tensor}' has too many axes")
    return [d if isinstance(d, int) else known.setdefault(d, sizes[len(known) % len(sizes)]) for d in dimensions]


def _inner(view: GraphView, tensor: str, known: Mapping[str, int], total: int) -> list[int]:
    """Return dimensions between the two reshapes, of which one may follow from the others."""
    sizes = [d if isinstance(d, int) else known.get(d) for d in dims(view, tensor) or ()]
    rest = prod(d for d in sizes if d is not None)
    if not sizes or sizes.count(None) > 1 or not rest or total % rest:
        raise Mismatch(f"the shape of '{tensor}' does not follow from others")
    return [total // rest if d is None else d for d in sizes]


def _row(view: GraphView, first: NodeProto, last: NodeProto) -> int:
    """Return the width of a row between two views that together change nothing."""
    outer, inner, back = (_known(view, name) for name in (first.input[0], first.output[0], last.output[0]))
    if not outer or not len(outer) == len(inner) == len(back):
        raise Mismatch("the views change the number of axes")
    width, size = outer[-1], inner[-1]
    if width is None or size is None or back[-1] != width or width % size or width == size:
        raise Mismatch("the views do not cut the last axis into rows")
    pairs = zip(outer, view.symbols(first.input[0]), back, view.symbols(last.output[0]), strict=True)
    # One dimension follows from the others.
    if sum((a, s) != (b, t) or (a is None and not s) for a, s, b, t in list(pairs)[:-1]) > 1:
        raise Mismatch("what the last view gives may have another shape than what the first one reads")
    return size
