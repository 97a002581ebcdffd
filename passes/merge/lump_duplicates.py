"""Add up the columns of equal channels."""

from dataclasses import dataclass

import numpy as np

from onnxfold.channels.declarations import Role
from onnxfold.channels.group import FoldGroup
from onnxfold.channels.rows import put_rows_of, rows_of
from onnxfold.cluster.partition import Labels, mean_partition
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult


@dataclass(frozen=True, eq=False)
class LumpDuplicates(Pass):
    """Give the first of several equal channels the sum of their consumer columns, and the others zeros.

    The network computes the same, since equal channels carry equal values. How a sum was spread over the columns of
    equal channels says nothing about a row; without this, rows that differ in nothing else would look
    dissimilar, and a repair would correct a loss of variance that the fold does not cause.
    """

    groups: tuple[FoldGroup, ...]
    #: Classes of equal channels per group, see :func:`onnxfold.cluster.duplicates.find_duplicates`.
    duplicates: tuple[Labels, ...]

    def run(self, view: GraphView) -> PassResult:
        """Rewrite the columns of every group that has duplicates."""
        modified = False
        for group, classes in zip(self.groups, self.duplicates, strict=True):
            merge = mean_partition(classes)
            if merge.is_identity:
                continue
            for member in group.with_role(Role.CONSUMER):
                columns = rows_of(view, member)
                lumped = np.zeros_like(columns)
                np.add.at(lumped, merge.representatives[merge.labels], columns)
                if not np.array_equal(lumped, columns):
                    put_rows_of(view, member, lumped)
                    modified = True
        return PassResult(modified)
