"""Widening, the inverse of folding: an equal network in which every foldable channel exists several times.

Written directly on the ModelProto with numpy. Of the library it uses only what `onnxfold.inspect` says about where the
units of each group lie; how weights are copied and split, and where the copies go, is decided here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

import onnxfold
from onnxfold.channels.declarations import Role
from onnxfold.channels.group import FoldGroup

Array = NDArray[Any]
Index = NDArray[np.int64]
Order = Literal["forward", "backward", "random"]


@dataclass(frozen=True)
class WideGroup:
    """The new units of a group: which old unit each one copies, and between which old ones it stands.

    Parameters
    ----------
    source : ndarray of shape (n',)
        Old unit that each new unit is a copy of.
    slot : ndarray of shape (n',)
        Ascending; new unit v takes a place that old unit ``slot[v]`` had.
    """

    source: Index
    slot: Index


@dataclass(frozen=True)
class WideAxis:
    """A widened axis: the old position behind each new one, and which group and new unit it belongs to (-1: none)."""

    source: Index
    group: Index
    unit: Index


def widen(
    model: onnx.ModelProto, seed: int, factor: int | None = 2, per_row: bool = False, order: Order = "forward"
) -> tuple[onnx.ModelProto, dict[str, float]]:
    """Return an equal, wider model, and per group of it the channel ratio that leads back to the original.

    Parameters
    ----------
    model : ModelProto
        Left untouched. Its folded weights must be initializers.
    seed : int
        Decides the order of the channels and the parts that columns are split into.
    factor : int, optional
        Copies per channel; None draws one to three for every channel (and as many in every block of a grouped conv).
    per_row : bool
        Split every entry of a consumer's column on its own, not the column as a whole. Copies of a channel then
        are equal only once the columns of the equal channels in front of them have been added up.
    order : {'forward', 'backward', 'random'}
        Whether groups are widened from the input to the output, so that the split columns are copied along with
        their row; the other way round, so that the copies' columns are split differently; or, per weight, either way.
    """
    rng = np.random.default_rng([seed, 7])
    groups = onnxfold.inspect(model)
    wide = [_draw_units(group, factor, rng) for group in groups]  # first, see copied_units
    result = onnx.ModelProto()
    result.CopyFrom(model)
    weights = {t.name: numpy_helper.to_array(t) for t in result.graph.initializer}
    counts = _Counts(result, groups, wide, weights)
    for node in result.graph.node:
        counts.rewrite(node)
    del result.graph.value_info[:]

    for name in dict.fromkeys(m.axis.tensor for g in groups for m in g.members):
        axes: dict[tuple[int, int], Role] = {
            (m.axis.axis, m.axis.blocks): m.role for g in groups for m in g.members if m.axis.tensor == name
        }
        steps = sorted(axes.items(), key=lambda item: item[1] is not Role.CONSUMER)
        if order == "backward" or (order == "random" and rng.integers(2)):
            steps.reverse()
        # An axis is laid out by its old widths; the packed axis of a grouped conv keeps its number of blocks.
        layouts = {key: _lay_out(groups, wide, name, *key, weights[name].shape) for key, _ in steps}
        values = weights[name].astype(np.float64)
        for (axis, blocks), role in steps:
            values = _stretch(values, axis, blocks, layouts[axis, blocks], role, per_row, rng)
        weights[name] = values.astype(weights[name].dtype)

    for tensor in result.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(weights[tensor.name]), tensor.name))
    ratios = {g.name: 1.0 - g.size / len(w.source) for g, w in zip(groups, wide, strict=True)}
    return result, ratios


def copied_units(model: onnx.ModelProto, seed: int, factor: int | None = 2) -> dict[str, Index]:
    """Return, per group, the old unit that each unit of ``widen(model, seed, factor)`` is a copy of."""
    rng = np.random.default_rng([seed, 7])
    return {group.name: _draw_units(group, factor, rng).source for group in onnxfold.inspect(model)}


def _draw_units(group: FoldGroup, factor: int | None, rng: np.random.Generator) -> WideGroup:
    blocks = np.zeros(group.size, np.int64) if group.blocks is None else group.blocks
    copies = np.full(group.size, factor or 1)
    if factor is None:
        drawn = rng.integers(1, 4, group.size // group.block_count)
        for block in range(group.block_count):
            copies[blocks == block] = rng.permutation(drawn)
    source = np.empty(copies.sum(), np.int64)
    slot = np.repeat(np.arange(group.size), copies)  # as many new units in a block as copies of its old ones
    for block in range(group.block_count):
        units = np.flatnonzero(blocks == block)
        source[np.isin(slot, units)] = rng.permutation(np.repeat(units, copies[units]))
    return WideGroup(source, slot)


def _lay_out(
    groups: list[FoldGroup], wide: list[WideGroup], tensor: str, axis: int, blocks: int, shape: tuple[int, ...]
) -> WideAxis:
    """Lay out a widened axis: where a run of one unit's positions stood, stand those of its slot's new units."""
    width = shape[axis] * blocks
    group_at, unit_at, rank_at = np.full((3, width), -1, np.int64)
    where: dict[int, Index] = {}
    for g, group in enumerate(groups):
        for key, positions in [(m.axis, m.positions) for m in group.members] + list(group.tensors.items()):
            if (key.tensor, key.axis) == (tensor, axis):
                where[g] = positions
                group_at[positions] = g
                unit_at[positions] = np.arange(group.size)[:, None]
                rank_at[positions] = np.arange(positions.shape[1])
    rows: list[tuple[int, int, int]] = []
    start = 0
    while start < width:
        stop = start + 1
        g, unit = int(group_at[start]), int(unit_at[start])
        if g < 0:
            rows.append((start, -1, -1))
            start = stop
            continue
        while stop < width and (group_at[stop], unit_at[stop]) == (g, unit):
            stop += 1
        for new in np.flatnonzero(wide[g].slot == unit).tolist():
            ranks = rank_at[start:stop].tolist()
            rows += [(int(where[g][wide[g].source[new], rank]), g, new) for rank in ranks]
        start = stop
    return WideAxis(*np.array(rows, np.int64).reshape(-1, 3).T)


def _stretch(
    values: Array, axis: int, blocks: int, layout: WideAxis, role: Role, per_row: bool, rng: np.random.Generator
) -> Array:
    """Copy the entries along an axis to their new places; a consumer's are split among the copies."""
    split = values.reshape(blocks, values.shape[0] // blocks, *values.shape[1:])
    front = np.moveaxis(split, axis + 1, 1)  # (blocks, entries, rest of block)
    packed = front.reshape(blocks * front.shape[1], *front.shape[2:])
    new = packed[layout.source]
    if role is Role.CONSUMER:
        # Copies of one old column get parts of it.
        for column in np.unique(layout.source).tolist():
            copies = np.flatnonzero(layout.source == column)
            new[copies] *= _parts(len(copies), packed.shape[1:] if per_row else (1,) * (packed.ndim - 1), rng)
    back = np.moveaxis(new.reshape(blocks, len(new) // blocks, *front.shape[2:]), 1, axis + 1)
    return back.reshape(blocks * back.shape[1], *back.shape[2:])


def _parts(count: int, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return `count` unequal numbers per entry that sum to one, about half of the first ones negative."""
    parts = rng.uniform(0.2, 1.2, (count, *shape)) * rng.choice([-1.0, 1.0], (count, *shape))
    parts[-1] = 1.0 - parts[:-1].sum(axis=0)
    return parts


class _Counts:
    """Adjusts the numbers of a graph that count or name channels, operator by operator."""

    def __init__(
        self, model: onnx.ModelProto, groups: list[FoldGroup], wide: list[WideGroup], weights: dict[str, Array]
    ) -> None:
        self.weights = weights
        self.groups, self.wide = groups, wide
        self.shapes = {t.name: tuple(t.dims) for t in model.graph.initializer}
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
        for info in [*inferred.input, *inferred.value_info, *inferred.output]:
            self.shapes[info.name] = tuple(d.dim_value for d in info.type.tensor_type.shape.dim)

    def layout(self, tensor: str, axis: int) -> WideAxis:
        shape = self.shapes[tensor]
        return _lay_out(self.groups, self.wide, tensor, axis % len(shape), 1, shape)

    def width(self, tensor: str, axis: int) -> int:
        return len(self.layout(tensor, axis).source)

    def rewrite(self, node: onnx.NodeProto) -> None:
        rewrite = getattr(self, f"_{node.op_type.lower()}", None)
        if rewrite is not None:
            rewrite(node)

    def _numbers(self, node: onnx.NodeProto, name: str, index: int) -> tuple[Array, Callable[[Array], None]]:
        """Return a list of numbers, an attribute or a constant input, and what stores a new one."""
        attr = next((a for a in node.attribute if a.name == name), None)
        if attr is not None:
            return np.array(attr.ints), lambda new: attr.ints.__setitem__(slice(None), new.tolist())
        old = self.weights[node.input[index]]
        return old.copy(), lambda new: self.weights.__setitem__(node.input[index], new.astype(old.dtype))

    def _conv(self, node: onnx.NodeProto) -> None:
        for attr in node.attribute:
            if attr.name == "group" and attr.i > 1 and attr.i == self.shapes[node.input[0]][1]:
                attr.i = self.width(node.input[0], 1)

    _convtranspose = _conv

    def _reshape(self, node: onnx.NodeProto) -> None:
        target, store = self._numbers(node, "shape", 1)
        new = [self.width(node.output[0], i) if size > 0 else size for i, size in enumerate(target.tolist())]
        store(np.array(new))

    def _expand(self, node: onnx.NodeProto) -> None:
        target, store = self._numbers(node, "shape", 1)
        new = [self.width(node.output[0], i) if size > 1 else size for i, size in enumerate(target.tolist())]
        store(np.array(new))

    def _resize(self, node: onnx.NodeProto) -> None:
        if len(node.input) > 3:
            sizes, store = self._numbers(node, "sizes", 3)
            store(np.array([sizes[0], self.width(node.output[0], 1), *sizes[2:]]))

    def _split(self, node: onnx.NodeProto) -> None:
        (axis,) = [a.i for a in node.attribute if a.name == "axis"]
        _, store = self._numbers(node, "split", 1)
        store(np.array([self.width(y, axis) for y in node.output]))

    def _slice(self, node: onnx.NodeProto) -> None:
        """Bounds count the positions in front of them."""
        x = node.input[0]
        axes, _ = self._numbers(node, "axes", 3)
        for name, index in (("starts", 1), ("ends", 2)):
            bounds, store = self._numbers(node, name, index)
            for i, axis in enumerate(axes.tolist()):
                first = slice(int(bounds[i]), None).indices(self.shapes[x][axis])[0]
                bounds[i] = (self.layout(x, axis).source < first).sum()
            store(bounds)

    def _gather(self, node: onnx.NodeProto) -> None:
        """Every index names the place of the channel that the result has there."""
        if node.input[1] not in self.weights or self.weights[node.input[1]].ndim != 1:
            return
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        old, store = self._numbers(node, "indices", 1)
        data, result = self.layout(node.input[0], axis), self.layout(node.output[0], axis)
        place = {
            (g, unit, position): i
            for i, (position, g, unit) in enumerate(zip(data.source, data.group, data.unit, strict=True))
        }
        chosen = old[result.source] % self.shapes[node.input[0]][axis]
        keys = zip(result.group, result.unit, chosen, strict=True)
        store(np.array([place[g, unit, position] for g, unit, position in keys]))

    def _lstm(self, node: onnx.NodeProto) -> None:
        for attr in node.attribute:
            if attr.name == "hidden_size":
                attr.i = self.width(next(filter(None, node.output)), -1)

    _gru = _rnn = _lstm

    def _pad(self, node: onnx.NodeProto) -> None:
        """Pad the channel axis by as many positions as lie before and behind the input after the widening."""
        rank, channels = len(self.shapes[node.input[0]]), 1
        pads, store = self._numbers(node, "pads", 1)
        padded = (self.weights[node.input[3]] % rank).tolist() if len(node.input) > 3 else list(range(rank))
        if channels in padded:
            begin, end = padded.index(channels), padded.index(channels) + len(padded)
            before, inside = int(pads[begin]), self.shapes[node.input[0]][channels]
            source = self.layout(node.output[0], channels).source
            pads[begin], pads[end] = (source < before).sum(), (source >= before + inside).sum()
            store(pads)


def relative_difference(reference: list[Array], outputs: list[Array]) -> float:
    """Return the largest difference of any output over the largest entry of that output."""
    worst = 0.0
    for a, b in zip(reference, outputs, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        x, y = a.astype(np.float64), b.astype(np.float64)
        worst = max(worst, float(np.abs(x - y).max() / max(float(np.abs(x).max()), 1e-12)))
    return worst
