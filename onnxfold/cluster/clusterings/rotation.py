"""Rotation of channels to their principal axes, where any orthonormal basis of them will do.

docs/mathematics.md, "Rotations", has the formulas.
Sources: arXiv 2401.15024.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onnxfold.channels.declarations import Role
from onnxfold.channels.group import FoldGroup, Member
from onnxfold.cluster.partition import ChannelPartition, axes_partition
from onnxfold.cluster.task import Candidates
from onnxfold.graph.tensors import Matrix
from onnxfold.graph.view import GraphView
from onnxfold.language.lookups import row_chances
from onnxfold.statistics.observe import ConsumerMoments

#: Relative energy below which the rest of a spectrum is rounding.
_ROUNDING = 1e-12
#: Added to the diagonal of the metric of scores, relative to its mean: what was not scored costs something, too.
_SCORES_RIDGE = 1e-3
#: The same of what a product reads, of which it may use a part.
_FACTOR_RIDGE = 1e-6
#: Rows of a table that are multiplied at a time.
_CHUNK = 4096


@dataclass(eq=False)
class Rotations(Candidates):
    """Principal axes, the leading ones first."""

    encode: Matrix  # P and Q with all axes: rows of P, columns of Q
    decode: Matrix
    errors: Matrix  # what the consumers lose with k of them, added up
    normed: bool = False  # whether norms take their mean square
    centred: bool = False  # whether norms subtract their mean; the first axis is the vector of ones then
    cluster: str = "rotation"

    def partition(self, k: int) -> ChannelPartition:
        """Return the leading k axes."""
        encode, decode = self.encode[:k], self.decode[:, :k]
        if self.centred:
            turn = _ones_reflection(k)
            encode, decode = turn @ encode, decode @ turn
        if self.normed:
            scale = np.sqrt(k / self.encode.shape[1])
            encode, decode = encode * scale, decode / scale
        return axes_partition(np.ascontiguousarray(encode), np.ascontiguousarray(decode))


def _ones_reflection(k: int) -> Matrix:
    """Return the reflection that exchanges the first axis and the direction of the vector of ones."""
    identity = np.eye(k)
    apart = identity[0] - 1.0 / np.sqrt(k)
    length = float(apart @ apart)
    return identity - np.outer(apart, apart) * (2.0 / length) if length > 0.0 else identity


def rotations(
    moments: Sequence[tuple[Matrix, Matrix]], metric: Matrix | None = None, *, normed: bool = False,
    centred: bool = False,
) -> Rotations:  # fmt: skip
    """Return the principal axes of channels."""
    n = len(moments[0][0])
    if centred:  # their mean is kept whatever else is
        rows = [(m - m.mean(axis=0), g) for m, g in moments]
        moments = [(m - m.mean(axis=1, keepdims=True), g) for m, g in rows]
    root = np.eye(n) if metric is None else np.linalg.cholesky(metric)
    total = np.zeros((n, n))
    known = [(m, g) for m, g in moments if np.isfinite(m).all() and np.trace(m) > 0.0]
    for m, _ in known:
        total += m / np.trace(m)
    total = root.T @ total @ root
    if centred:
        total += (1.0 + np.trace(total)) / n
    _, vectors = np.linalg.eigh((total + total.T) / 2.0)
    axes = np.ascontiguousarray(vectors[:, ::-1])
    if centred:
        axes[:, 0] = 1.0 / np.sqrt(n)
    axes *= np.where(axes[np.abs(axes).argmax(axis=0), np.arange(n)] < 0.0, -1.0, 1.0)
    encode = axes.T @ root.T
    decode = axes if metric is None else np.linalg.solve(root.T, axes)
    costs = np.zeros(n + 1)
    for m, g in known:
        product = (decode.T @ (g if metric is None else metric) @ decode) * (encode @ m @ encode.T)
        whole = float(product.sum())
        if whole > 0.0:  # what lies in the trailing block [k:, k:]
            left = np.cumsum(np.cumsum(product[::-1, ::-1], axis=0), axis=1).diagonal()[::-1] / whole
            costs[:n] += np.where(left > _ROUNDING, left, 0.0)
    costs = np.maximum.accumulate(costs[::-1])[::-1].copy()
    costs[0], costs[n] = np.inf, 0.0
    return Rotations(encode, decode, costs, normed, centred)


def seen_moments(
    view: GraphView, group: FoldGroup, seen: Sequence[ConsumerMoments], words: Matrix | None
) -> list[tuple[Matrix, Matrix]]:
    """Return the moments for :func:`rotations`: rows of a table of words, as common as they are; else what was seen."""
    grams = [reader.gram for reader in seen] or [_products(view, member) for member in group.with_role(Role.CONSUMER)]
    producers = group.with_role(Role.PRODUCER)
    chances = [] if words is None else [row_chances(view, m.axis.tensor, words) for m in producers]
    if [view.weight_size(m.axis.tensor) for m in producers] == [len(chance) * group.size for chance in chances]:
        moment = _products(view, producers[0], chances[0])
        return [(moment, gram) for gram in grams]
    if seen:
        # As seen: to trust every direction alike changes no axis, and to trust channels changes what rank there is.
        return [(reader.covariance, reader.gram) for reader in seen]
    total: Matrix = np.sum([_products(view, member) for member in producers], axis=0)
    return [(total, gram) for gram in grams]


def shared_rotations(view: GraphView, group: FoldGroup, seen: Sequence[ConsumerMoments]) -> Rotations:
    """Return the principal axes of the rows of a table that is looked up and scored by, in the metric of its scores.

    An error of a row changes its score by its product with what is scored; what a lookup returns passes the same
    layers, and to keep it in the same metric was found to lose as little.
    """
    (rows,) = group.with_role(Role.PRODUCER)
    moments = [(_products(view, rows), np.eye(group.size))]
    known = [c for c in (reader.covariance for reader in seen) if np.isfinite(c).all() and np.trace(c) > 0.0]
    if not known:
        return rotations(moments)
    metric: Matrix = np.sum([covariance / np.trace(covariance) for covariance in known], axis=0)
    return rotations(moments, metric + _SCORES_RIDGE * np.trace(metric) / group.size * np.eye(group.size))


def factor_rotations(view: GraphView, group: FoldGroup, seen: Sequence[ConsumerMoments]) -> Rotations:
    """Return the axes of what a product reads that lose least of its result: the best product of two factors."""
    moments = seen_moments(view, group, seen, None)
    tiny = float(np.finfo(np.float64).tiny)
    energies = [max(float((m * g).sum()), tiny) for m, g in moments]
    parts = [np.asarray(g, np.float64) / energy for (_, g), energy in zip(moments, energies, strict=True)]
    metric: Matrix = np.sum(parts, axis=0)
    added = _FACTOR_RIDGE * float(np.trace(metric)) / len(metric)
    return rotations(moments, metric + (added if added > 0.0 else 1.0) * np.eye(len(metric)))


def _products(view: GraphView, member: Member, weights: Matrix | None = None) -> Matrix:
    """Return the sum of the products of what a weight holds for every pair of channels, weighted, chunk by chunk."""
    values = np.moveaxis(view.weight(member.axis.tensor), member.axis.axis, -1)
    values = values.reshape(-1, values.shape[-1])
    total = np.zeros((len(member.positions), len(member.positions)))
    for start in range(0, len(values), _CHUNK):
        rows = np.asarray(values[start : start + _CHUNK, member.positions[:, 0]], np.float64)
        total += (rows if weights is None else rows * weights[start : start + _CHUNK, None]).T @ rows
    return total
