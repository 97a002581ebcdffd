"""Structured magnitude pruning: keep the channels with the largest rows, drop the others.

What consumes a channel is not looked at, and nothing is compensated: the columns of dropped channels vanish.

References
----------
Li et al., "Pruning Filters for Efficient ConvNets", arXiv 1608.08710, section 3: filters are ranked by their L1 norm.
Where a residual stream couples filters, the paper ranks those of the projection shortcut alone, here the rows of all
producers of the stream are concatenated.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

from onnxfold.channels.declarations import Role
from onnxfold.channels.group import FoldGroup
from onnxfold.cluster.features import member_rows
from onnxfold.cluster.partition import ChannelPartition, check_clusters, select_partition
from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.view import GraphView

_PART_ELEMENTS = 1 << 22


def top_norm(view: GraphView, group: FoldGroup, k: int, *, order: Literal[1, 2]) -> ChannelPartition:
    """Select the k units with the largest norm of their producer rows."""
    return keep_largest(row_norms(view, group, order=order), group, k)


def keep_largest(scores: npt.NDArray[np.float64], group: FoldGroup, k: int) -> ChannelPartition:
    """Select the k units with the largest of scores of shape (n_units,), as :func:`top_norm` does with norms."""
    check_clusters(k, group.size, group.block_count)
    if not np.isfinite(scores).all():
        raise UnsupportedModelError(
            f"weights of group '{group.name}' are NaN, infinite, or too large to compare: check the training"
        )
    blocks = np.zeros(group.size, np.int64) if group.blocks is None else group.blocks
    ranked = np.argsort(-scores, kind="stable")
    kept = [ranked[blocks[ranked] == block][: k // group.block_count] for block in range(group.block_count)]
    return select_partition(np.concatenate(kept), group.size)


def row_norms(view: GraphView, group: FoldGroup, *, order: Literal[1, 2]) -> npt.NDArray[np.float64]:
    """Return the norm of each unit's rows, over all producers of the group, shape (n_units,)."""
    total = np.zeros(group.size)
    for member in group.with_role(Role.PRODUCER):
        rows = member_rows(view, member)
        step = max(_PART_ELEMENTS // max(rows.shape[1], 1), 1)
        for start in range(0, len(rows), step):  # large weights are not copied as a whole
            part = np.abs(rows[start : start + step].astype(np.float64)) ** order
            total[start : start + step] += part.sum(axis=1)
    return total if order == 1 else np.sqrt(total)
