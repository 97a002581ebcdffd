"""Least-squares compensation of the consumers of folded channels."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto

from onnxfold.channels.declarations import Axis, Role, Use
from onnxfold.channels.layers import linear, takes_mean
from onnxfold.channels.operators import Window
from onnxfold.graph.nodes import node_key
from onnxfold.graph.tensors import Array, Matrix
from onnxfold.graph.view import GraphView
from onnxfold.passes.merge.axis_map import AxisMap
from onnxfold.passes.merge.fold_channels import merge_weight
from onnxfold.passes.repair.least_squares import correction, decode_samples, read_patches, ridge_regression
from onnxfold.passes.repair.side_by_side import ColumnMap, Refits, SideBySide
from onnxfold.statistics.moments import CrossMoments
from onnxfold.statistics.observe import FitRules
from onnxfold.statistics.samples import (
    Batch,
    Positions,
    Samples,
    length_factors,
    stride_for,
    unit_samples,
    weighted_batches,
)

#: Strength of the pulls towards the plain fold and towards no change of single taps, relative to the mean variance.
RIDGE, TAP_RIDGE = 1e-2, 1e-1
#: What inputs that may differ from data add to both, per doubt.
DOUBTED = 0.15
#: Enough samples for a map between channels; more positions than this are thinned out evenly.
MAX_SAMPLES = 200_000
#: Patches: so many per column of the weight, at least `_LEAST_PATCHES`, and not more numbers than fit into memory.
_PATCHES_PER_COLUMN, _LEAST_PATCHES, _PATCH_NUMBERS = 8, 10_000, 48 << 20
#: Wider weights are compensated per channel only.
_WIDEST = 8192


class Compensation:
    """Rewrites the weights of consumers while both networks run."""

    def __init__(self, walk: SideBySide, seed: int, refits: Refits | None, rules: FitRules) -> None:
        self._refits = refits
        self._walk = walk
        self._seed = seed
        self._rules = rules
        self._solutions: dict[tuple[str, int, int, bool], Matrix] = {}
        self._consumers: dict[str, list[Use]] = {}
        for group in walk.plan.lossy.groups:
            # Rows of a part of a table are known, and inputs show few of them: its basis is the best as it is.
            for member in () if group.is_part else group.with_role(Role.CONSUMER):
                for use in member.uses:
                    self._consumers.setdefault(use.node, []).append(use)

    @property
    def _original(self) -> GraphView:
        return self._walk.reference.view

    @property
    def _view(self) -> GraphView:
        return self._walk.folded.view

    # -- maps between channels -----------------------------------------------------------------

    def refit_channels(self, node: NodeProto) -> None:
        """Before a node runs, write W B in place of W U; one B per input tensor."""
        for key in [key for key in self._solutions if key[0] not in self._walk.reference.values]:
            del self._solutions[key]
        for use in dict.fromkeys(self._consumers.get(node_key(node), ())):
            if use.channels.tensor in node.input:
                self._refit(use, has_bias=takes_mean(self._original, node))

    def refit_own(self, node: NodeProto, channels: Axis) -> None:
        """The same for what a recurrence reads of its own result, by the values that stand there now."""
        self.forget(channels)
        for use in dict.fromkeys(self._consumers.get(node_key(node), ())):
            if use.channels == channels:
                self._refit(use)

    def forget(self, channels: Axis) -> None:
        """Let the next reader of an activation have a B of its own."""
        for key in [key for key in self._solutions if key[:2] == (channels.tensor, channels.axis)]:
            del self._solutions[key]

    def columns(self, channels: Axis, mapped: AxisMap) -> Matrix:
        """Return B for an activation; U where no consumer was refitted."""
        keys = ((channels.tensor, channels.axis, 1, has_bias) for has_bias in (True, False))
        return next((self._solutions[key] for key in keys if key in self._solutions), mapped.decode)

    def _refit(self, use: Use, *, has_bias: bool = True) -> None:
        channels, weight = use.channels, use.axis
        shared = len(self._original.consumers(weight.tensor)) > 1
        if channels.tensor not in self._walk.reference.values or shared:
            return
        mapped = self._walk.map(channels.tensor, channels.axis)
        if mapped is None:
            return
        key = (channels.tensor, channels.axis, weight.blocks, has_bias)
        if key not in self._solutions:
            self._solutions[key] = self._solve(channels, mapped, weight.blocks, has_bias=has_bias)
        fold = (mapped.positions, mapped.representatives, self._solutions[key].T)
        values = self._original.weight(weight.tensor)
        merged = merge_weight(self._original, self._walk.plan, weight.tensor, values, {weight: fold})
        self._view.set_weight(weight.tensor, merged)
        if self._refits is not None:
            column_map = ColumnMap(weight, mapped.positions, mapped.representatives, self._solutions[key])
            self._refits.columns[weight.tensor] = column_map

    def _solve(self, channels: Axis, mapped: AxisMap, blocks: int, *, has_bias: bool) -> Matrix:
        """Return B for an activation; block diagonal in front of a grouped convolution."""
        x, y = self._walk.folded_reference(channels.tensor, channels.axis), self._walk.folded.values[channels.tensor]
        if x is None:
            return mapped.decode
        width = x[0].shape[channels.axis]
        block = mapped.positions[:, 0] // (width // blocks)
        folded_block = block[mapped.representatives]
        stride = stride_for(x, len(mapped.positions), MAX_SAMPLES)
        whole = mapped.decode
        solution = np.zeros_like(whole) if blocks > 1 else None
        for b in range(blocks):
            rows, columns = np.flatnonzero(block == b), np.flatnonzero(folded_block == b)
            inside = np.ix_(rows, columns)
            plain = whole if blocks == 1 else whole[inside]
            places = mapped.positions[rows], mapped.folded_positions[columns]
            residuals = partial(_residuals, x, y, channels.axis, places, plain, stride)
            wrong = _inexact_channels(residuals(), len(rows))
            moments = CrossMoments(int(wrong.sum()), len(columns))
            by_length = partial(_residuals_by_length, x, y, channels.axis, places, plain, stride)
            samples = weighted_batches(by_length, centre=has_bias) if self._rules.by_length else residuals()
            for rest, seen in samples:
                moments.add(rest if wrong.all() else rest[:, wrong], seen)
            block_solution = np.array(plain)
            if wrong.any():
                centres = has_bias and not self._rules.by_length
                block_solution[wrong] += correction(moments, RIDGE + DOUBTED * self._rules.doubt.part, has_bias=centres)
            if solution is None:
                return block_solution
            solution[inside] = block_solution
        assert solution is not None, "there is at least one block"
        return solution

    # -- taps of convolutions ------------------------------------------------------------------

    def compares(self, node: NodeProto) -> bool:
        """Whether a node's results are looked at: of a convolution with several taps."""
        operator = linear(self._original, node)
        return operator is not None and operator.fixed_window is not None and operator.fixed_window.taps > 1

    def refit_taps(self, before: NodeProto, after: NodeProto) -> None:
        """After a node has run in the original, and before it runs in the fold, add to every tap what is missing."""
        operator = linear(self._view, after)
        window = None if operator is None else operator.fixed_window
        if operator is None or window is None or not operator.is_plain or not self._is_alone(operator.weight):
            return
        inputs, outputs = self._walk.map(before.input[0], 1), self._walk.map(before.output[0], 1)
        if inputs is None or outputs is None:
            return
        if not self._walk.loses(before.input[0], 1) or window.taps == 1:
            return
        weight = self._view.weight(operator.weight)
        if weight[0].size > _WIDEST:
            return
        patches, goals = self._samples(before, window, outputs, weight[0].size * window.groups)
        rows = weight.reshape(len(weight), -1).astype(np.float32, copy=False)
        split = (np.split(part, window.groups, axis) for part, axis in ((rows, 0), (patches, 1), (goals, 1)))
        change = []
        for w, p, y in zip(*split, strict=True):
            patch = np.ascontiguousarray(p)
            # Means are taken off, and the bias with them.
            change.append(ridge_regression(patch, y - patch @ w.T, TAP_RIDGE + DOUBTED * self._rules.doubt.part))
        added = np.concatenate(change).reshape(weight.shape)
        self._view.set_weight(operator.weight, weight + added)
        if self._refits is not None:
            self._refits.taps[operator.weight] = added

    def _is_alone(self, weight: str) -> bool:
        return self._original.is_weight(weight) and len(self._original.consumers(weight)) == 1

    def _samples(self, node: NodeProto, window: Window, outputs: AxisMap, width: int) -> tuple[Samples, Samples]:
        """Return patches, and the outputs to be had from them, at positions drawn at random."""
        x = self._walk.folded.values[node.input[0]]
        goal = self._walk.reference.values[node.output[0]]
        spatial = goal[0].shape[2:]
        positions = int(np.prod(spatial)) * sum(len(part) for part in goal)
        wanted = min(max(_PATCHES_PER_COLUMN * width, _LEAST_PATCHES), max(_PATCH_NUMBERS // width, 1), positions)
        random = np.random.default_rng(self._seed)
        patches, goals = [], []
        for batch in range(len(x)):
            count = int(np.prod(spatial)) * len(x[batch])
            share = -(-wanted * count // positions)
            chosen = np.sort(random.choice(count, share, replace=False)) if share < count else np.arange(count)
            sample, *places = np.unravel_index(chosen, (len(x[batch]), *spatial))
            at: Any = (sample, slice(None), *places)
            patches.append(read_patches(x[batch], window, places, sample))
            goals.append(outputs.encode_samples(goal[batch][at].astype(np.float32, copy=False)))
        return np.concatenate(patches), np.concatenate(goals).astype(np.float32, copy=False)


def _paired_samples(
    x: list[Array], y: list[Array], axis: int, places: tuple[Positions, Positions], stride: int
) -> Iterator[tuple[Samples, Samples]]:
    """Yield samples of the channels at some places, and of those that stand for them."""
    for original, folded in zip(x, y, strict=True):
        goal, seen = (unit_samples(part, axis, at, stride) for part, at in zip((original, folded), places, strict=True))
        yield goal, seen


def _residuals(
    x: list[Array], y: list[Array], axis: int, places: tuple[Positions, Positions], plain: Matrix, stride: int
) -> Iterator[tuple[Samples, Samples]]:
    """Yield samples of what the plain fold leaves of the channels at some places, and of those that stand for them."""
    for goal, seen in _paired_samples(x, y, axis, places, stride):
        goal -= decode_samples(seen, plain)
        yield goal, seen


def _residuals_by_length(
    x: list[Array], y: list[Array], axis: int, places: tuple[Positions, Positions], plain: Matrix, stride: int
) -> Iterator[Batch]:
    """Yield the same, with the factors of the original's lengths."""
    for goal, seen in _paired_samples(x, y, axis, places, stride):
        factors = length_factors(goal)
        goal -= decode_samples(seen, plain)
        yield (goal, seen), factors


def _inexact_channels(residuals: Iterator[tuple[Samples, Samples]], channels: int) -> npt.NDArray[np.bool_]:
    """Return which channels the plain fold does not give exactly: of a selection of the original's, the dropped."""
    wrong = np.zeros(channels, np.bool_)
    for rest, _ in residuals:
        wrong |= rest.any(axis=0)
        if wrong.all():
            break
    return wrong
