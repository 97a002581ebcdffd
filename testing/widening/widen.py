"""Widening of a model: equal, with copies of every channel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, Literal, Protocol

import numpy as np
import onnx
from onnx import numpy_helper

from onnxfold.channels.declarations import Role
from onnxfold.channels.group import FoldGroup
from onnxfold.graph.shapes.shape_inference import drop_inferable
from testing.widening.axes import Array, Index, Parts, WideAxis, draw_units, lay_out, stretch
from testing.widening.operators import OperatorNumbers

Order = Literal["forward", "backward", "random"]


class Numbers(Protocol):
    """What knows the groups of a narrow model, and its numbers that count or name channels."""

    groups: list[FoldGroup]

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Return the narrow shape of a tensor."""

    def rewrite(self, model: onnx.ModelProto, layout: Callable[..., WideAxis], weights: dict[str, Array]) -> None:
        """Adjust attributes of a copy of the model, and constants among its weights."""


class Widening:
    """An equal, wider model, in the making: which copies there are is drawn, weights are not yet.

    Parameters
    ----------
    model : ModelProto
        Left untouched. Its folded weights must be initializers.
    seed : int
        Decides the order of the channels and the parts that columns are split into.
    factor : int, optional
        Copies per channel; None draws one to three for every channel (and as many in every block of a grouped conv).
    numbers : type
        Knows the groups, and rewrites numbers that count or name channels.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        seed: int,
        factor: int | None = 2,
        numbers: Callable[[onnx.ModelProto], Numbers] = OperatorNumbers,
    ) -> None:
        self.rng = np.random.default_rng([seed, 7])
        self.narrow = model
        self.numbers = numbers(model)
        self.groups = self.numbers.groups
        self.units = [draw_units(group, factor, self.rng) for group in self.groups]

    @property
    def ratios(self) -> dict[str, float]:
        """Per group the channel ratio that leads back to the narrow model."""
        return {g.name: 1.0 - g.size / len(w.source) for g, w in zip(self.groups, self.units, strict=True)}

    def apply(self, order: Order = "forward", parts: Parts | None = None) -> onnx.ModelProto:
        """Return the wider model; see :func:`widen`."""
        result = onnx.ModelProto()
        result.CopyFrom(self.narrow)
        old = {t.name: numpy_helper.to_array(t) for t in result.graph.initializer}
        weights = dict(old)
        self.numbers.rewrite(result, self._layout, weights)
        drop_inferable(result)
        for name in dict.fromkeys(m.axis.tensor for g in self.groups for m in g.members):
            weights[name] = self._widened(name, weights[name], order, parts or Parts())
        for tensor in result.graph.initializer:
            values = weights.pop(tensor.name)
            if values is not old[tensor.name]:
                tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values), tensor.name))
        result.graph.initializer.extend(numpy_helper.from_array(values, name) for name, values in weights.items())
        _write_listed(result)
        return result

    def _widened(self, name: str, values: Array, order: Order, parts: Parts) -> Array:
        axes: dict[tuple[int, int], Role] = {
            (m.axis.axis, m.axis.blocks): m.role for g in self.groups for m in g.members if m.axis.tensor == name
        }
        steps = sorted(axes.items(), key=lambda item: item[1] is not Role.CONSUMER)
        if order == "backward" or (order == "random" and self.rng.integers(2)):
            steps.reverse()
        # An axis is laid out by its old widths; the packed axis of a grouped conv keeps its number of blocks.
        layouts = {key: lay_out(self.groups, self.units, name, *key, values.shape) for key, _ in steps}
        new = values.astype(np.float64)
        for (axis, blocks), role in steps:
            new = stretch(new, axis, blocks, layouts[axis, blocks], role, parts, self.rng)
        return new.astype(values.dtype)

    def _layout(self, tensor: str, axis: int, blocks: int = 1) -> WideAxis:
        return lay_out(self.groups, self.units, tensor, axis, blocks, self.numbers.shape(tensor))


def widen(
    model: onnx.ModelProto, seed: int, factor: int | None = 2, per_row: bool = False, order: Order = "forward"
) -> tuple[onnx.ModelProto, dict[str, float]]:
    """Return an equal, wider model, and per group of it the channel ratio that leads back to the original.

    Parameters
    ----------
    model, seed, factor
        As :class:`Widening` takes them.
    per_row : bool
        Split every entry of a consumer's column on its own, not the column as a whole. Copies of a channel then
        are equal only once the columns of the equal channels in front of them have been added up.
    order : {'forward', 'backward', 'random'}
        Whether groups are widened from the input to the output, so that the split columns are copied along with
        their row; the other way round, so that the copies' columns are split differently; or, per weight, either way.
    """
    widening = Widening(model, seed, factor)
    return widening.apply(order, Parts(per_row)), widening.ratios


def copied_units(model: onnx.ModelProto, seed: int, factor: int | None = 2) -> dict[str, Index]:
    """Return, per group, the old unit that each unit of ``widen(model, seed, factor)`` is a copy of."""
    widening = Widening(model, seed, factor)
    return {g.name: w.source for g, w in zip(widening.groups, widening.units, strict=True)}


def in_order(groups: Sequence[FoldGroup], ratios: dict[str, float]) -> dict[str, float] | None:
    """Order ratios so that the last one that a group answers to is its own; None where no order does."""
    earlier = {g.name: {name for name in ratios if name != g.name and g.matches(name)} for g in groups}
    try:
        return {name: ratios[name] for name in TopologicalSorter(earlier).static_order()}
    except CycleError:
        return None


def _write_listed(model: onnx.ModelProto) -> None:
    """Write the shapes of weights that are listed as inputs, as old exporters do."""
    dims: dict[str, Any] = {t.name: t.dims for t in model.graph.initializer}
    for info in model.graph.input:
        if info.name in dims:
            shape = info.type.tensor_type.shape
            del shape.dim[:]
            for size in dims[info.name]:
                shape.dim.add(dim_value=size)
