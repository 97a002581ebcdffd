"""Widening exported models: tests/widen.py's copies and splits, with every number that counts channels rewritten.

tests.widen.widen knows the operators of the test models; exports also hold Split, Slice, Gather, Expand. Here the
numbers to rewrite are the ones that the channel analysis declares; how weights are copied and split, and where the
copies go, is tests/widen.py's decision, independent of the library's merge.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, numpy_helper

from onnxfold.channels import ChannelAnalysis, find_groups
from onnxfold.channels.declarations import Count, Role, Select
from onnxfold.channels.group import FoldGroup
from onnxfold.graph.load import load
from onnxfold.graph.save import to_model
from onnxfold.graph.view import GraphView
from onnxfold.passes.normalize.pipelines import NORMALIZE
from tests.widen import Array, WideAxis, WideGroup, _draw_units, _lay_out, _stretch


def normalised(path: str) -> ModelProto:
    """Return the model as the library sees it: weights are initializers, one per use."""
    view = load(path)
    NORMALIZE(view)
    return to_model(view)


def widen(model: ModelProto, factor: int | None, seed: int = 0) -> tuple[ModelProto, dict[str, float] | None]:
    """Return an equal, wider model, and per group of it the channel ratio that leads back.

    The ratios are None where no order of them says what is meant, because groups answer to each other's names.

    Parameters
    ----------
    model : ModelProto
        Normalised; left untouched.
    factor : int, optional
        Copies of every channel of every fold group; None draws one to three, so that nothing that weighs channels
        by their number comes out equal by chance.
    seed : int
        Decides the order of the channels and the parts that columns are split into.
    """
    widener = _Widener(model, factor, seed)
    return widener.run(), _ratios(widener.analysis.groups, widener.wide)


def _ratios(groups: list[FoldGroup], wide: list[WideGroup]) -> dict[str, float] | None:
    """Order the ratios so that the last one that a group answers to is its own."""
    ratios = {g.name: 1.0 - g.size / len(w.source) for g, w in zip(groups, wide, strict=True)}
    earlier = {g.name: {name for name in ratios if name != g.name and g.matches(name)} for g in groups}
    try:
        return {name: ratios[name] for name in TopologicalSorter(earlier).static_order()}
    except CycleError:
        return None


class _Widener:
    def __init__(self, model: ModelProto, factor: int | None, seed: int) -> None:
        self.view: GraphView = load(model)
        self.analysis: ChannelAnalysis = find_groups(self.view)
        self.rng = np.random.default_rng([seed, 7])
        self.wide: list[WideGroup] = [_draw_units(g, factor, self.rng) for g in self.analysis.groups]
        self.result = ModelProto()
        self.result.CopyFrom(model)
        del self.result.graph.value_info[:]
        self.weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        self.new: dict[str, Array] = {}

    def run(self) -> ModelProto:
        for name in dict.fromkeys(m.axis.tensor for g in self.analysis.groups for m in g.members):
            self.new[name] = self._widened(name)
        nodes = {o: n for n in self.result.graph.node for o in n.output if o}
        for count in self.analysis.counts:
            self._set_count(nodes[count.node], count)
        for select in self.analysis.selects:
            self._renumber(nodes[select.node], select)
        graph = self.result.graph
        kept = [t for t in graph.initializer if t.name not in self.new]
        changed = [numpy_helper.from_array(np.ascontiguousarray(v), n) for n, v in self.new.items()]
        copies = [onnx.TensorProto.FromString(t.SerializeToString()) for t in kept]
        del graph.initializer[:]
        graph.initializer.extend([*copies, *changed])
        return self.result

    def _layout(self, tensor: str, axis: int, blocks: int = 1) -> WideAxis:
        shape = tuple(d or 0 for d in self.view.shape(tensor) or ())
        return _lay_out(self.analysis.groups, self.wide, tensor, axis, blocks, shape)

    def _widened(self, name: str) -> Array:
        members = [m for g in self.analysis.groups for m in g.members if m.axis.tensor == name]
        axes: dict[tuple[int, int], Role] = {(m.axis.axis, m.axis.blocks): m.role for m in members}
        values = self.weights[name].astype(np.float64)
        # Consumers first, so that the split columns are copied along with their rows.
        for (axis, blocks), role in sorted(axes.items(), key=lambda item: item[1] is not Role.CONSUMER):
            layout = self._layout(name, axis, blocks)
            values = _stretch(values, axis, blocks, layout, role, False, self.rng)
        return values.astype(self.weights[name].dtype)

    def _set_count(self, node: NodeProto, count: Count) -> None:
        source = self._layout(count.axis.tensor, count.axis.axis, count.axis.blocks).source
        number = int(((source >= count.start) & (source < count.stop)).sum())
        if count.attribute:
            attr = next(a for a in node.attribute if a.name == count.attribute)
            if count.element is None:
                attr.i = number
            else:
                attr.ints[count.element] = number
            return
        old = node.input[count.input_index]
        values = np.array(self.new.get(old, self.weights.get(old)))
        values.reshape(-1)[count.element or 0] = number
        self._rewire(node, count.input_index, values)

    def _renumber(self, node: NodeProto, select: Select) -> None:
        chosen = self.weights[node.input[select.input_index]]
        target = self._layout(select.axis.tensor, select.axis.axis)
        source = self._layout(select.source.tensor, select.source.axis)
        places = zip(target.source.tolist(), target.group.tolist(), target.unit.tolist(), strict=True)
        known = zip(source.source.tolist(), source.group.tolist(), source.unit.tolist(), strict=True)
        where = {key: place for place, key in enumerate(known)}
        width = self.view.shape(select.source.tensor)[select.source.axis]  # type: ignore[index]
        values = [where[int(chosen[old]) % width, group, unit] for old, group, unit in places]  # type: ignore[operator]
        self._rewire(node, select.input_index, np.array(values, chosen.dtype))

    def _rewire(self, node: NodeProto, index: int, values: Array) -> None:
        name = f"{next(filter(None, node.output))}_wide_{index}"
        self.new[name] = values
        node.input[index] = name
