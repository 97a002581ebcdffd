"""Widening by what the channel analysis says alone: positions of groups, counts and selections, no operator by name.

`tests/widen.py` adjusts each operator by its own knowledge; this one, for random graphs, checks that the declarations
of the rules suffice: a graph that does not compute the same after it was made wider is a rule that tells an untruth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfold.channels import find_groups
from onnxfold.channels.declarations import Axis, Role
from onnxfold.channels.group import ChannelAnalysis, FoldGroup
from onnxfold.graph.load import load
from onnxfold.graph.nodes import node_key
from onnxfold.graph.save import to_model
from onnxfold.graph.shape_inference import drop_inferable
from onnxfold.graph.view import GraphView
from onnxfold.passes.normalize.pipelines import NORMALIZE

Array = NDArray[Any]
Index = NDArray[np.int64]
FACTOR = 2


@dataclass(frozen=True)
class _Layout:
    """A widened axis: per new position the old place it fills, the old position it copies, its group and new unit."""

    place: Index
    source: Index
    group: Index
    unit: Index


class _Widening:
    def __init__(self, view: GraphView, analysis: ChannelAnalysis, rng: np.random.Generator) -> None:
        self.view, self.groups, self.rng = view, analysis.groups, rng
        self.sources = [self._draw(group) for group in self.groups]
        self.layouts: dict[Axis, _Layout] = {}
        self.widths: dict[Axis, int] = {}
        for group in self.groups:
            for axis in [m.axis for m in group.members] + list(group.tensors):
                if axis not in self.layouts:
                    size = (view.shape(axis.tensor) or ())[axis.axis]
                    assert size is not None
                    self.layouts[axis] = self._lay_out(axis, size * axis.blocks)

    def _draw(self, group: FoldGroup) -> Index:
        """Return the old unit that each new unit copies; new unit v takes a place that old unit v // FACTOR had."""
        blocks = np.zeros(group.size, np.int64) if group.blocks is None else group.blocks
        source = np.repeat(np.arange(group.size), FACTOR)
        for block in range(group.block_count):
            inside = np.flatnonzero(blocks[source] == block)
            source[inside] = self.rng.permutation(source[inside])
        return source

    def _lay_out(self, axis: Axis, width: int) -> _Layout:
        group_at, unit_at, rank_at = np.full((3, width), -1, np.int64)
        where: dict[int, Index] = {}
        for g, group in enumerate(self.groups):
            positions = group.positions(axis)
            if positions is not None:
                where[g] = positions
                group_at[positions] = g
                unit_at[positions] = np.arange(group.size)[:, None]
                rank_at[positions] = np.arange(positions.shape[1])
        rows: list[tuple[int, int, int, int]] = []
        start = 0
        while start < width:
            g, unit, stop = int(group_at[start]), int(unit_at[start]), start + 1
            if g < 0:
                rows.append((start, start, -1, -1))
                start = stop
                continue
            while stop < width and (group_at[stop], unit_at[stop]) == (g, unit):
                stop += 1
            for new in range(FACTOR * unit, FACTOR * unit + FACTOR):
                copied = where[g][self.sources[g][new]]
                rows += [(p, int(copied[rank_at[p]]), g, new) for p in range(start, stop)]
            start = stop
        return _Layout(*np.array(rows, np.int64).reshape(-1, 4).T)

    def stretch(self, values: Array, axis: Axis, role: Role) -> Array:
        layout, blocks = self.layouts[axis], axis.blocks
        split = values.reshape(blocks, values.shape[0] // blocks, *values.shape[1:])
        front = np.moveaxis(split, axis.axis + 1, 1)
        packed = front.reshape(blocks * front.shape[1], *front.shape[2:])
        new = packed[layout.source]
        if role is Role.CONSUMER:  # copies of a column get parts of it that sum to one
            for column in np.unique(layout.source[layout.group >= 0]).tolist():
                copies = np.flatnonzero(layout.source == column)
                parts = self.rng.uniform(0.2, 1.2, (len(copies), *[1] * (new.ndim - 1)))
                parts[-1] = 1.0 - parts[:-1].sum(axis=0)
                new[copies] *= parts
        back = np.moveaxis(new.reshape(blocks, len(new) // blocks, *front.shape[2:]), 1, axis.axis + 1)
        return back.reshape(blocks * back.shape[1], *back.shape[2:])

    def count(self, axis: Axis, start: int, stop: int) -> int:
        place = self.layouts[axis].place
        return int(((place >= start) & (place < stop)).sum())

    def renumber(self, axis: Axis, source: Axis, old: Index) -> Index:
        """Every index names the new position of the place, and of the new unit, that the result has there."""
        result = self.layouts.get(axis)
        width = (self.view.shape(source.tensor) or ())[source.axis]
        place = np.arange(len(old)) if result is None else result.place
        unit = np.full(len(old), -1) if result is None else result.unit
        data = self.layouts.get(source)
        if data is None:
            return old[place]
        at = {(int(p), int(u)): i for i, (p, u) in enumerate(zip(data.place, data.unit, strict=True))}
        return np.array([at[int(old[p]) % width, int(u)] for p, u in zip(place, unit, strict=True)], np.int64)


def widen(model: onnx.ModelProto, seed: int) -> tuple[onnx.ModelProto, list[int]] | None:
    """Return an equal model with every foldable channel twice, and the old widths; None if there is no group."""
    rng = np.random.default_rng([seed, 13])
    view = load(model)
    NORMALIZE(view)
    analysis = find_groups(view)
    if not analysis.groups:
        return None
    w = _Widening(view, analysis, rng)
    by_output = {node_key(node): node for node in view.graph.node}

    # First what reads shapes and values of the narrow graph, then the edits.
    numbers: dict[tuple[str, int], Array] = {}
    for count in analysis.counts:
        if count.axis not in w.layouts:
            continue
        node, new = by_output[count.node], w.count(count.axis, count.start, count.stop)
        if count.attribute:
            for attr in node.attribute:
                if attr.name == count.attribute and count.element is None:
                    attr.i = new
                elif attr.name == count.attribute:
                    attr.ints[count.element] = new
            continue
        key = (count.node, count.input_index)
        values = numbers.setdefault(key, np.array(view.weight(node.input[count.input_index])))
        values.reshape(-1)[count.element or 0] = new
    for select in analysis.selects:
        if select.axis in w.layouts or select.source in w.layouts:
            old = view.weight(by_output[select.node].input[select.input_index])
            numbers[select.node, select.input_index] = w.renumber(select.axis, select.source, old).astype(old.dtype)
    wide: dict[str, Array] = {}
    for name in dict.fromkeys(m.axis.tensor for g in analysis.groups for m in g.members):
        roles = {m.axis: m.role for g in analysis.groups for m in g.members if m.axis.tensor == name}
        steps = sorted(roles.items(), key=lambda item: item[1] is not Role.CONSUMER)
        values = np.asarray(view.weight(name), np.float64)
        for axis, role in steps if rng.integers(2) else reversed(steps):
            values = w.stretch(values, axis, role)
        wide[name] = values
    for name, values in wide.items():
        view.set_weight(name, np.ascontiguousarray(values))
    for (key_node, index), values in numbers.items():
        by_output[key_node].input[index] = view.add_weight(f"{key_node}_{index}_wide", values)
    drop_inferable(view.model)
    for info in view.model.graph.input:  # weights that are listed as inputs
        if info.name in wide:
            dims = info.type.tensor_type.shape.dim
            del dims[:]
            for size in wide[info.name].shape:
                dims.add(dim_value=size)
    return to_model(view), [g.size for g in analysis.groups]
