"""Numbers that count or name channels, from the declarations of the rules, for any operator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto

from onnxfold.channels import find_groups
from onnxfold.channels.declarations import Count, Select
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.passes.normalize.pipelines import NORMALIZE
from onnxfold.passes.normalize.shapes import LearnShapes
from onnxfold.quantize.integers import dequantize
from testing.widening.axes import Array, WideAxis

Layout = Callable[[str, int, int], WideAxis]


def normalised(model: ModelProto | Path) -> ModelProto:
    """Return the model as the library sees it: weights are initializers of floats, one per use."""
    view = load(model)
    dequantize(view)
    NORMALIZE(view)
    return to_model(view)


class DeclaredNumbers:
    """Rewrites a graph by counts and selections of the channel analysis.

    Parameters
    ----------
    model : ModelProto
        The narrow one, normalised.
    """

    def __init__(self, model: ModelProto) -> None:
        self.view = load(model)
        LearnShapes()(self.view)
        self.analysis = find_groups(self.view)
        self.groups = self.analysis.groups

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Return the narrow shape of a tensor; 0 where a length is unknown."""
        return tuple(d or 0 for d in self.view.shape(tensor) or ())

    def rewrite(self, model: ModelProto, layout: Layout, weights: dict[str, Array]) -> None:
        """Adjust attributes of a copy of the model, and give every number that is an input a constant of its own."""
        nodes = {o: n for n in model.graph.node for o in n.output if o}
        for count in self.analysis.counts:
            _set_count(nodes[count.node], count, layout, weights)
        for select in self.analysis.selects:
            self._renumber(nodes[select.node], select, layout, weights)

    def _renumber(self, node: NodeProto, select: Select, layout: Layout, weights: dict[str, Array]) -> None:
        chosen = weights[node.input[select.input_index]]
        target = layout(select.axis.tensor, select.axis.axis, 1)
        source = layout(select.source.tensor, select.source.axis, 1)
        places = zip(target.source.tolist(), target.group.tolist(), target.unit.tolist(), strict=True)
        known = zip(source.source.tolist(), source.group.tolist(), source.unit.tolist(), strict=True)
        where = {key: place for place, key in enumerate(known)}
        width = self.shape(select.source.tensor)[select.source.axis]
        # Channels that are repeated may stay, and are then of no group.
        keys = [(int(chosen[old]) % width, group, unit) for old, group, unit in places]
        values = [where[key if key in where else (key[0], -1, -1)] for key in keys]
        _rewire(node, select.input_index, np.array(values, chosen.dtype), weights)


def _set_count(node: NodeProto, count: Count, layout: Layout, weights: dict[str, Array]) -> None:
    place = layout(count.axis.tensor, count.axis.axis, count.axis.blocks).place
    number = int(((place >= count.start) & (place < count.stop)).sum()) // count.each
    if isinstance(count.place, int):
        values = np.array(weights[node.input[count.place]])
        values.reshape(-1)[count.element or 0] = number
        _rewire(node, count.place, values, weights)
        return
    attr = next((a for a in node.attribute if a.name == count.place), None)
    if attr is None:  # left out: it follows from the widths of weights
        return
    if count.element is None:
        attr.i = number
    else:
        attr.ints[count.element] = number


def _rewire(node: NodeProto, index: int, values: Array, weights: dict[str, Array]) -> None:
    name = f"{next(filter(None, node.output))}_wide_{index}"
    weights[name] = values
    node.input[index] = name
