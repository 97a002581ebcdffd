"""Least-squares compensation of consumers of folded channels, and its algebra; docs/mathematics.md has formulas."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from onnxfold.channels.declarations import Axis, Positions, Role, Use, Window
from onnxfold.channels.group import lists_by_key
from onnxfold.channels.layers import linear, takes_mean
from onnxfold.graph.nodes import node_key
from onnxfold.graph.tensors import Array, Matrix
from onnxfold.graph.view import GraphView
from onnxfold.machine.threads import usable_cores
from onnxfold.passes.merge.fold_channels import AxisMap, merge_weight
from onnxfold.passes.repair.side_by_side import SideBySide
from onnxfold.statistics.moments import CrossMoments, remove_mean
from onnxfold.statistics.observe import FitRules
from onnxfold.statistics.samples import (
    Batch,
    Samples,
    joined,
    length_factors,
    stride_for,
    unit_samples,
    weighted_batches,
)

#: Of residuals and what stands for them, and of the latter.
Covariances = tuple[Matrix, Matrix]

#: Columns of a Gram matrix that one thread multiplies at a time.
_BLOCK = 256
#: Deviations below this fraction of the mean are rounding of float32 activations.
_NOISE = 4.0 * float(np.finfo(np.float32).eps)


def correction(
    residuals: CrossMoments, ridge: float, *, has_bias: bool = True, unpooled: Covariances | None = None
) -> Matrix:
    """Return D = B - U of shape (n, k): what the plain fold lacks, from what it leaves.

    `unpooled` holds the covariances of the same in front of a global pooling, where there is one.

    Zeros where the samples say nothing. In-sample, D x' is never larger than the residual it corrects, so a residual
    that is rounding gives a correction that is rounding, however singular the moments are.
    """
    cross, gram = residuals.covariance, residuals.gram
    if unpooled is not None and np.trace(unpooled[1]) > 0.0:
        part = len(gram) / (len(gram) + residuals.count)
        scale = part * np.trace(gram) / np.trace(unpooled[1])
        cross, gram = (1.0 - part) * cross + scale * unpooled[0], (1.0 - part) * gram + scale * unpooled[1]
    if not has_bias:
        cross += np.outer(residuals.mean_x, residuals.mean_y)
        gram += np.outer(residuals.mean_y, residuals.mean_y)
    variance = np.trace(gram) / len(gram)
    # What is left of a variance far below the mean square is rounding.
    noise = _NOISE**2 * float(np.square(residuals.mean_y).mean()) + np.finfo(np.float32).tiny
    if not (np.isfinite(variance) and variance > noise and np.isfinite(cross).all()):
        return np.zeros_like(cross)
    gram[np.diag_indices_from(gram)] += ridge * variance
    try:
        factor = cho_factor(gram, lower=True, check_finite=False)
    except LinAlgError:
        return np.zeros_like(cross)
    return np.asarray(cho_solve(factor, cross.T, check_finite=False).T)


def decode_samples(samples: Samples, decode: Matrix) -> Samples:
    """Return U x' for samples of x', shape (S, k): shape (S, n)."""
    used = decode != 0.0
    if (used.sum(axis=1) > 1).any():
        return samples @ decode.T.astype(samples.dtype)
    # Every channel stands for one at most: taken, not computed, so that merged duplicates leave nothing at all.
    return np.asarray(samples[:, used.argmax(axis=1)] * decode.sum(axis=1).astype(samples.dtype))


def lower_gram(columns: Samples) -> Samples:
    """Return X^T X of shape (d, d) with zeros somewhere above the diagonal, for X of shape (S, d).

    Blocks of columns are shared out among threads. Their borders are the same for any number of threads, and so is
    every sum.
    """
    width = columns.shape[1]
    if width <= _BLOCK:
        return columns.T @ columns
    gram = np.zeros((width, width), columns.dtype)

    def fill(start: int) -> None:
        gram[start:, start : start + _BLOCK] = columns[:, start:].T @ columns[:, start : start + _BLOCK]

    with ThreadPoolExecutor(usable_cores()) as pool:
        list(pool.map(fill, range(0, width, _BLOCK)))  # raises what a block raised
    return gram


def ridge_regression(patches: Samples, residual: Samples, ridge: float) -> Samples:
    """Return D of shape (m, d); zeros where the samples say nothing."""
    samples, width = patches.shape
    for values in (patches, residual):
        remove_mean(values, out=values)
    strength = ridge * float(np.vdot(patches, patches)) / width
    if not np.isfinite(strength) or strength <= np.finfo(np.float32).tiny or not np.isfinite(residual).all():
        return np.zeros((residual.shape[1], width), np.float32)
    # Of the two equal forms P^T (P P^T + s I)^-1 R = (P^T P + s I)^-1 P^T R the one with the smaller matrix.
    dual = samples < width
    gram = lower_gram(patches.T if dual else patches)
    gram[np.diag_indices_from(gram)] += np.float32(strength)
    try:
        factor = cho_factor(gram, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError:  # float32 cannot tell some patches apart
        return np.zeros((residual.shape[1], width), np.float32)
    right = residual if dual else patches.T @ residual
    solved = cho_solve(factor, right, check_finite=False)
    return np.asarray((patches.T @ solved if dual else solved).T, np.float32)


def read_patches(x: Array, window: Window, places: Sequence[npt.NDArray[np.int64]], sample: Array) -> Samples:
    """Return the patches that a convolution reads, shape (S, C * taps), channels first as in the rows of its weight.

    Neighbouring places are best in the same sample.
    """
    offsets = np.indices(window.kernel).reshape(len(window.kernel), -1)
    index: list[Any] = []
    inside = np.ones((len(sample), window.taps), bool)
    for axis, place in enumerate(places):
        at = place[:, None] * window.strides[axis] - window.pads[axis] + offsets[axis] * window.dilations[axis]
        size = x.shape[2 + axis]
        inside &= (at >= 0) & (at < size)
        index.append(np.clip(at, 0, size - 1))
    patches = _read_positions(x, sample, np.ravel_multi_index(tuple(index), x.shape[2:]))
    np.copyto(patches, 0, where=~inside[:, None])
    return patches.reshape(len(sample), -1)


def _read_positions(x: Array, sample: Array, positions: npt.NDArray[np.int64]) -> Samples:
    """Return what stands at positions (S, taps) of the flat maps of some samples, shape (S, C, taps)."""
    maps = x.reshape(*x.shape[:2], prod(x.shape[2:]))
    read: Samples = np.empty((len(sample), x.shape[1], positions.shape[1]), np.float32)
    borders = np.flatnonzero(np.diff(sample, prepend=-1, append=-1))  # of runs of places in one sample
    for begin, end in pairwise(borders.tolist()):
        values = maps[sample[begin]][:, positions[begin:end].ravel()]  # each channel's map stays near the processor
        read[begin:end] = values.reshape(len(values), end - begin, -1).transpose(1, 0, 2)
    return read


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

    def __init__(self, walk: SideBySide, seed: int, rules: FitRules) -> None:
        self._walk, self._seed, self._rules = walk, seed, rules
        self._original, self._view = walk.reference.view, walk.folded.view
        self._solutions: dict[tuple[str, int, int, bool], Matrix] = {}
        self._unpooled: dict[str, Covariances] = {}  # by the key of a global pooling, in front of it
        # Rows of a part of a table are known, and inputs show few of them: its basis is the best as it is.
        groups = [group for group in walk.plan.lossy.groups if not group.is_part]
        uses = dict.fromkeys(use for group in groups for m in group.with_role(Role.CONSUMER) for use in m.uses)
        self._consumers = lists_by_key((use.node, use) for use in uses)
        read = {use.channels.tensor for use in uses}
        # Of texts, positions count by their length, and moments of all positions alike say nothing.
        poolings = ((tensor, _pooling_of(self._original, tensor)) for tensor in (() if rules.by_length else read))
        self._poolings = {tensor: node_key(node) for tensor, node in poolings if node is not None}

    def refit_channels(self, node: NodeProto) -> None:
        """Before a node runs, write W B in place of W U; one B per input tensor."""
        self._solutions = {key: b for key, b in self._solutions.items() if key[0] in self._walk.reference.values}
        if node_key(node) in self._poolings.values():
            self._see_positions(node)
        for use in self._consumers.get(node_key(node), ()):
            if use.channels.tensor in node.input:
                self._refit(use, has_bias=takes_mean(self._original, node))

    def refit_own(self, node: NodeProto, channels: Axis) -> None:
        """The same for what a recurrence reads of its own result, by the values that stand there now."""
        self.forget(channels)
        for use in self._consumers.get(node_key(node), ()):
            if use.channels == channels:
                self._refit(use)

    def forget(self, channels: Axis) -> None:
        """Let the next reader of an activation have a B of its own."""
        self._solutions = {key: b for key, b in self._solutions.items() if key[:2] != (channels.tensor, channels.axis)}

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
        if not mapped.rotates and self._are_energies(channels.tensor, values):
            merged = np.maximum(merged, 0)
        self._view.set_weight(weight.tensor, merged)

    def _are_energies(self, tensor: str, weight: Array) -> bool:
        """Whether a layer adds up what is never negative, as bands of a spectrum: a logarithm may follow."""
        return not (weight < 0).any() and not any((batch < 0).any() for batch in self._walk.reference.values[tensor])

    def _see_positions(self, pooling: NodeProto) -> None:
        """Take the moments of the positions that are about to be pooled."""
        tensor = pooling.input[0]
        y = self._walk.folded.values[tensor]
        for axis in range(1, y[0].ndim):
            mapped = self._walk.map(tensor, axis) if self._walk.plan.touches(Axis(tensor, axis)) else None
            x = None if mapped is None else self._walk.folded_reference(tensor, axis)
            if x is None or mapped is None:
                continue
            moments = CrossMoments(*mapped.decode.shape)
            places = mapped.positions, mapped.folded_positions
            stride = stride_for(x, len(mapped.positions), MAX_SAMPLES)
            for rest, seen in joined(pair for pair, _ in _residuals(x, y, axis, places, mapped.decode, stride)):
                moments.add(rest, seen)
            self._unpooled[node_key(pooling)] = moments.covariance, moments.gram

    def _solve(self, channels: Axis, mapped: AxisMap, blocks: int, *, has_bias: bool) -> Matrix:
        """Return B for an activation; block diagonal in front of a grouped convolution."""
        x, y = self._walk.folded_reference(channels.tensor, channels.axis), self._walk.folded.values[channels.tensor]
        if x is None:
            return mapped.decode
        width = x[0].shape[channels.axis]
        block = mapped.positions[:, 0] // (width // blocks)
        folded_block = block[mapped.representatives]
        stride = stride_for(x, len(mapped.positions), MAX_SAMPLES)
        by_length, ridge = self._rules.by_length, RIDGE + DOUBTED * self._rules.doubt.part
        centres = has_bias and not by_length
        solution = np.array(mapped.decode)
        for b in range(blocks):
            rows, columns = np.flatnonzero(block == b), np.flatnonzero(folded_block == b)
            plain = mapped.decode if blocks == 1 else mapped.decode[np.ix_(rows, columns)]
            places = mapped.positions[rows], mapped.folded_positions[columns]
            residuals = partial(_residuals, x, y, channels.axis, places, plain, stride)
            wrong = _inexact_channels(residuals(), len(rows))
            if not wrong.any():
                continue
            moments = CrossMoments(int(wrong.sum()), len(columns))
            samples = weighted_batches(residuals, centre=has_bias) if by_length else (pair for pair, _ in residuals())
            for rest, seen in joined((rest if wrong.all() else rest[:, wrong], seen) for rest, seen in samples):
                moments.add(rest, seen)
            unpooled = self._unpooled.get(self._poolings.get(channels.tensor, "")) if centres else None
            if unpooled is not None:
                cross, gram = unpooled
                unpooled = (cross[wrong], gram) if cross.shape == plain.shape else None
            added = correction(moments, ridge, has_bias=centres, unpooled=unpooled)
            solution[np.ix_(rows[wrong], columns)] += added
        return solution

    def compares(self, node: NodeProto) -> bool:
        """Whether a node's results are looked at: of a convolution with several taps."""
        operator = linear(self._original, node)
        return operator is not None and operator.fixed_window is not None and operator.fixed_window.taps > 1

    def refit_taps(self, before: NodeProto, after: NodeProto) -> None:
        """After a node has run in the original, and before it runs in the fold, add to every tap what is missing."""
        operator = linear(self._view, after)
        window = None if operator is None else operator.fixed_window
        if operator is None or window is None or not operator.is_plain or window.taps == 1:
            return
        if not self._original.is_weight(operator.weight) or len(self._original.consumers(operator.weight)) > 1:
            return
        inputs, outputs = self._walk.map(before.input[0], 1), self._walk.map(before.output[0], 1)
        if inputs is None or outputs is None or not self._walk.plan.lossy.touches(Axis(before.input[0], 1)):
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
            patches.append(read_patches(x[batch], window, places, sample))
            flat = np.ravel_multi_index(tuple(places), spatial)
            goals.append(outputs.encode_samples(_read_positions(goal[batch], sample, flat[:, None])[:, :, 0]))
        return np.concatenate(patches), np.concatenate(goals).astype(np.float32, copy=False)


def _pooling_of(view: GraphView, tensor: str) -> NodeProto | None:
    """Return the global pooling that makes a tensor, reshaped or not."""
    node = view.producer(tensor)
    while node is not None and node.op_type in ("Flatten", "Reshape", "Squeeze"):
        node = view.producer(node.input[0])
    return node if node is not None and node.op_type in ("GlobalAveragePool", "ReduceMean") else None


def _residuals(
    x: Sequence[Array], y: Sequence[Array], axis: int, places: tuple[Positions, Positions], plain: Matrix, stride: int
) -> Iterator[Batch]:
    """Yield samples of what the plain fold leaves of the channels at some places, and of those that stand for them.

    Beside them stand the factors of the original's lengths.
    """
    for original, folded in zip(x, y, strict=True):
        goal, seen = (unit_samples(part, axis, at, stride) for part, at in zip((original, folded), places, strict=True))
        factors = length_factors(goal)
        goal -= decode_samples(seen, plain)
        yield (goal, seen), factors


def _inexact_channels(residuals: Iterator[Batch], channels: int) -> npt.NDArray[np.bool_]:
    """Return which channels the plain fold does not give exactly: of a selection of the original's, the dropped."""
    wrong = np.zeros(channels, np.bool_)
    for (rest, _), _ in residuals:
        wrong |= rest.any(axis=0)
        if wrong.all():
            break
    return wrong
