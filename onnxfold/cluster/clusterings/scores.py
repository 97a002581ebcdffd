"""Pruning by scores of channels: Wanda in its structured form, FLAP's fluctuations, and the norm of weights.

docs/mathematics.md, "Scores of channels", has the formulas.
Sources: arXiv 2306.11695, arXiv 2312.11983, arXiv 1608.08710.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from onnxfold.channels.declarations import Role
from onnxfold.channels.group import FoldGroup
from onnxfold.cluster.gram import member_rows, require_finite
from onnxfold.cluster.partition import ChannelPartition, check_clusters, select_partition
from onnxfold.cluster.task import Candidates
from onnxfold.graph.tensors import Matrix
from onnxfold.graph.view import GraphView
from onnxfold.statistics.observe import ConsumerMoments, Places

_PART_ELEMENTS = 1 << 22


def top_norm(view: GraphView, group: FoldGroup, k: int, *, order: Literal[1, 2]) -> ChannelPartition:
    """Select the k units with the largest norm of their producer rows."""
    return keep_largest(row_norms(view, group, order=order), group, k)


def keep_largest(scores: Matrix, group: FoldGroup, k: int) -> ChannelPartition:
    """Select the k units with the largest of scores of shape (n_units,)."""
    check_clusters(k, group.size, group.block_count)
    require_finite(group, scores)
    per_block = k // group.block_count
    kept = [units[np.argsort(-scores[units], kind="stable")[:per_block]] for units in group.units_by_block]
    return select_partition(np.concatenate(kept), group.size)


def row_norms(view: GraphView, group: FoldGroup, *, order: Literal[1, 2]) -> Matrix:
    """Return the norm of each unit's rows, over all producers of the group, shape (n_units,)."""
    total = np.zeros(group.size)
    for member in group.with_role(Role.PRODUCER):
        rows = member_rows(view, member)
        step = max(_PART_ELEMENTS // max(rows.shape[1], 1), 1)
        for start in range(0, len(rows), step):  # large weights are not copied as a whole
            part = np.abs(rows[start : start + step].astype(np.float64)) ** order
            total[start : start + step] += part.sum(axis=1)
    return total if order == 1 else np.sqrt(total)


#: Beyond this z nothing is told apart: exp(z) has to stay a number.
_MOST = 30.0


def wanda_scores(moments: Sequence[ConsumerMoments]) -> Matrix:
    """Return a score per channel, shape (n_units,), from moments that hold places."""
    parts = [(p.absolute * np.sqrt(p.variance + p.mean**2)).sum(axis=1) for p in _places(moments)]
    return np.asarray(np.sum(parts, axis=0))


def fluctuations(moments: Sequence[ConsumerMoments]) -> Matrix:
    """Return FLAP's standardised score per channel, shape (n_units,), from moments that hold places."""
    parts = [_standardised(p.variance * p.squared).mean(axis=1) for p in _places(moments)]
    return np.asarray(np.mean(parts, axis=0))


def fluctuation_errors(moments: Sequence[ConsumerMoments]) -> Matrix:
    """Return the part of the consumers' output energy that is lost where a channel is replaced by its mean, (n_units,).

    Channels are taken to be independent.
    """
    errors: Matrix = np.zeros(len(moments[0].covariance))
    for seen, places in zip(moments, _places(moments), strict=True):
        energy = seen.energy
        if np.isfinite(energy) and energy > 0.0:
            errors += (places.variance * places.squared).sum(axis=1) / energy
    return errors


def _places(moments: Sequence[ConsumerMoments]) -> list[Places]:
    return [seen.places for seen in moments if seen.places is not None]


def _standardised(scores: Matrix) -> Matrix:
    deviation = float(scores.std())
    return (scores - scores.mean()) / deviation if deviation > 0.0 else np.zeros_like(scores)


class ByComparedScore(Candidates):
    """Channels kept by a score that means the same in every group."""

    def __init__(self, group: FoldGroup, scores: Matrix, errors: Matrix, weights: int, cluster: str) -> None:
        self._group, self._scores, self.cluster = group, scores, cluster
        self.errors = self._losses_by_width(errors)  # those of the channels that go, added up
        # Accumulated exp(z) of the channels that go, per weight.
        self.own_losses = self._losses_by_width(weights * np.exp(np.minimum(scores, _MOST)))

    def partition(self, k: int) -> ChannelPartition:
        """Keep the k channels with the largest scores."""
        return keep_largest(self._scores, self._group, k)

    def _losses_by_width(self, lost: Matrix) -> Matrix:
        """Return by width what is lost with all channels that go, one per block in every step."""
        n, count = self._group.size, self._group.block_count
        steps = np.zeros(n // count)
        for inside in self._group.units_by_block:
            steps += lost[inside[np.argsort(-self._scores[inside], kind="stable")[::-1]]]
        by_width = np.concatenate(([0.0], np.cumsum(steps)))[::-1]
        losses = np.interp(np.arange(n + 1), count * np.arange(n // count + 1), by_width)
        losses[:count] = np.inf
        return losses
