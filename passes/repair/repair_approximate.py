r"""Fold-AR's approximate repair: restore the variance lost by averaging, from weights alone.

The mean of N channels with unit variance and mean correlation E has variance (N + (N^2 - N) E) / N^2. With independent
unit inputs the correlation of two channels is the cosine of their rows, so per cluster c

    E[c] = mean over i != j in c of cos(w_i, w_j),    factor_c = N_c / sqrt(N_c + (N_c^2 - N_c) max(E[c], 0))

lies in [1, sqrt(N_c)]. Rows are those before the merge, producers only.

Case 1, BatchNormalization behind the layer, rows normalised: gamma_c = mean(gamma) * factor_c.
Case 2, BatchNormalization on a stream (pre-activation, dense blocks): the same with the concatenated rows of all
producers of the stream; the cosine does not depend on their common sigma.
Case 3, no BatchNormalization (fused models): row_c = mean ||w|| * factor_c * mean(w / ||w||), bias unchanged.

References
----------
arXiv 2502.10216, section 4 (Fold-AR); REPAIR: arXiv 2211.08403.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from onnxfold.channels.declarations import Role
from onnxfold.channels.group import FoldGroup, Member, put_rows_of, replaced_rows, rows_of, taken_rows
from onnxfold.channels.layers import group_layers, normalizations
from onnxfold.cluster.partition import ChannelPartition
from onnxfold.cluster.plan import FoldPlan
from onnxfold.graph.tensors import Matrix
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult
from onnxfold.passes.merge.fold_channels import merge_weight

Rows = npt.NDArray[np.floating]

_TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class RepairApproximate(Pass):
    """Rescale what a fold averaged."""

    original: GraphView  # the graph before the merge, rows normalised
    plan: FoldPlan
    #: Take E = 0 for BatchNormalizations and leave everything else alone: added-up variances, as iterative feature
    #: merging (arXiv 2310.06756) stores them, say the same.
    independent: bool = False

    def run(self, view: GraphView) -> PassResult:
        """Repair every group that loses more than exact duplicates."""
        for group, partition in self.plan.lossy:
            self._repair(view, group, partition)
        return PassResult(modified=bool(self.plan.lossy.groups))

    def _repair(self, view: GraphView, group: FoldGroup, partition: ChannelPartition) -> None:
        norms = normalizations(self.original, group)
        # By occurrences of a channel: all norms of a stream have the same.
        of_stream = cache(lambda r: self._factor(_stream_rows(self.original, group, r), partition))
        for norm in norms:
            if norm.layer is not None:
                factor = self._factor(rows_of(self.original, norm.layer.rows), partition)
            else:
                factor = of_stream(norm.scale.positions.shape[1])
            member = self.plan.fold_member(norm.scale, partition)
            put_rows_of(view, member, rows_of(view, member) * factor[:, :, None])
        if self.independent or any(norm.layer is None for norm in norms):
            return
        normalised = {id(norm.layer.rows) for norm in norms if norm.layer is not None}
        others = {id(layer.rows): layer.rows for layer in group_layers(self.original, group)}
        for rows in (member for key, member in others.items() if key not in normalised):
            self._rescale_rows(view, rows, partition)

    def _factor(self, rows: Rows, partition: ChannelPartition) -> Matrix:
        return variance_factor(np.zeros_like(rows) if self.independent else rows, partition)

    def _rescale_rows(self, view: GraphView, rows: Member, partition: ChannelPartition) -> None:
        tensor, old = rows.axis.tensor, rows_of(self.original, rows)
        norm = np.linalg.norm(old, axis=2)
        unit = old / np.where(norm > _TINY, norm, 1.0)[:, :, None]
        values = replaced_rows(np.asarray(self.original.weight(tensor), old.dtype), rows, unit)
        merged = merge_weight(self.original, self.plan, tensor, values)
        folded = self.plan.fold_member(rows, partition)
        length = (partition.encode @ norm) * variance_factor(old, partition)
        put_rows_of(view, folded, taken_rows(merged, folded) * length[:, :, None])


def variance_factor(rows: Rows, partition: ChannelPartition) -> Matrix:
    """Return factor_c for rows of shape (n, r, d), one factor per cluster and occurrence: shape (k, r)."""
    norm = np.linalg.norm(rows, axis=2)
    alive = norm > _TINY
    unit = rows / np.where(alive, norm, 1.0)[:, :, None]
    order = np.argsort(partition.labels, kind="stable")
    starts = np.searchsorted(partition.labels[order], np.arange(partition.clusters))
    total = np.add.reduceat(unit[order], starts, axis=0).astype(np.float64)
    size = partition.cluster_sizes[:, None].astype(np.float64)
    pairs = (total**2).sum(axis=2) - np.add.reduceat(alive[order].astype(np.float64), starts, axis=0)
    correlation = np.clip(pairs / np.maximum(size**2 - size, 1.0), 0.0, 1.0)
    return np.asarray(size / np.sqrt(size + (size**2 - size) * correlation))


def _stream_rows(view: GraphView, group: FoldGroup, r: int) -> Rows:
    rows = [rows_of(view, member) for member in group.with_role(Role.PRODUCER)]
    parts = [part if part.shape[1] == r else part.reshape(len(part), 1, -1).repeat(r, axis=1) for part in rows]
    return np.concatenate(parts, axis=2)
