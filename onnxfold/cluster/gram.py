"""Feature vectors by which channels are compared, and points by their inner products, however long the vectors are.

docs/mathematics.md has the derivation, and the sources.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components

from onnxfold.channels.declarations import Role
from onnxfold.channels.group import FoldGroup, Member, rows_of
from onnxfold.channels.layers import epsilon
from onnxfold.cluster.partition import ChannelPartition, Labels, renumber
from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.tensors import Matrix
from onnxfold.graph.view import GraphView
from onnxfold.machine import memory
from onnxfold.statistics.moments import remove_mean

Rows = npt.NDArray[np.floating]
Vector = npt.NDArray[np.float64]

#: Rounding of |x|^2 + |y|^2 - 2 xy, relative to |x|^2 + |y|^2.
_ROUNDING = 64 * float(np.finfo(np.float64).eps)


def features(view: GraphView, group: FoldGroup, *, with_deviation: bool) -> Iterator[tuple[Role, Rows]]:
    """Yield the feature blocks of a group's units, each of shape (n_units, d).

    `with_deviation` includes Sigma_n; leave it out where rows are normalised.
    """
    for member in group.members:
        if member.role in (Role.PRODUCER, Role.CONSUMER):
            yield member.role, member_rows(view, member)
        elif member.role is Role.SCALE:
            yield member.role, _diagonals(member_rows(view, member))
        elif member.role is Role.VARIANCE and with_deviation:
            variance = np.maximum(member_rows(view, member), 0.0)
            yield member.role, _diagonals(1.0 / np.sqrt(variance + epsilon(view, member)))


def _diagonals(values: Rows) -> Rows:
    """Return [diag(v_1) | diag(v_2) | ...] for the columns of an (n, r) matrix."""
    return np.concatenate([np.diag(column) for column in values.T], axis=1)


def member_rows(view: GraphView, member: Member) -> Rows:
    """Return the entries of a weight for each unit, shape (n_units, d)."""
    rows = rows_of(view, member)
    return rows.reshape(len(rows), -1)


def require_finite(group: FoldGroup, values: npt.NDArray[np.float64]) -> None:
    """Refuse weights that cannot be compared."""
    if not np.isfinite(values).all():
        raise UnsupportedModelError(
            f"weights of group '{group.name}' are NaN, infinite, or too large to compare: check the training"
        )


def centred_gram(blocks: Iterable[Rows]) -> Matrix:
    """Return the Gram matrix of n centred points, the sum of that of every block of their features."""
    gram: Matrix | None = None
    for block in blocks:
        memory.require(4 * memory.array_bytes((len(block), len(block)), 8), f"comparing {len(block):,} channels")
        rest, _ = remove_mean(block)
        part = np.asarray(rest @ rest.T, np.float64)
        gram = part if gram is None else np.add(gram, part, out=gram)
        del part
    if gram is None:
        raise ValueError("at least one feature block is needed")
    centring = gram.mean(axis=0)
    gram -= centring[None, :]
    gram -= centring[:, None]
    gram += centring.mean()
    return gram


class Points:
    """Points by their inner products."""

    def __init__(self, gram: Matrix) -> None:
        self.gram = gram

    def __len__(self) -> int:
        return len(self.gram)

    def of(self, points: Labels) -> "Points":
        """Return some of the points; all of them, if they are as many."""
        return self if len(points) == len(self) else Points(self.gram[np.ix_(points, points)])

    @cached_property
    def coordinates(self) -> Matrix:
        """Points in at most n dimensions that have these inner products, shape (n, d)."""
        values, vectors = np.linalg.eigh(self.gram)
        keep = values > max(values[-1], 0.0) * 1e-12
        return np.asarray(vectors[:, keep] * np.sqrt(values[keep])) if keep.any() else np.zeros((len(self), 1))

    @property
    def distances(self) -> Vector:
        """Distances of all pairs in the order of scipy, shape (n (n - 1) / 2,); 0 where points agree up to rounding."""
        squares, start = self.gram.diagonal(), 0
        distances = np.empty(len(self) * (len(self) - 1) // 2)
        for i in range(len(self) - 1):
            both = squares[i] + squares[i + 1 :]
            row = both - 2.0 * self.gram[i, i + 1 :]
            row[row <= _ROUNDING * both] = 0.0
            np.sqrt(row, out=distances[start : start + len(row)])
            start += len(row)
        return distances

    @cached_property
    def tree(self) -> Matrix:
        """Ward's hierarchy."""
        from scipy.cluster.hierarchy import linkage

        return np.asarray(linkage(self.distances, "ward"), np.float64)

    def mean_products(self, labels: Labels, weights: Vector, k: int) -> tuple[Matrix, Vector]:
        """Return the inner products of k weighted means with all points, shape (k, n), and with themselves.

        Points with the label -1 belong to no cluster; no other label may be missing.
        """
        members = np.flatnonzero(labels >= 0)
        total = np.bincount(labels[members], weights=weights[members], minlength=k)
        share = weights[members] / total[labels[members]]
        means = csr_array((share, (labels[members], members)), shape=(k, len(labels)))
        cross: Matrix = means @ self.gram
        own = share * cross[labels[members], members]
        return cross, np.bincount(labels[members], weights=own, minlength=k).astype(np.float64)

    def scatter(self, partition: ChannelPartition) -> float:
        """Return the part of the points' variance that lies within clusters, or in points that belong to none."""
        whole = float(self.gram.trace())
        total = whole - float(self.gram.mean()) * len(self)
        if partition.matrices is None:
            _, means = self.mean_products(partition.labels, np.ones(len(self)), partition.clusters)
            lost = whole - float((partition.cluster_sizes * means).sum())
        else:
            rest = np.eye(len(self)) - partition.decode @ partition.encode
            lost = float(((rest @ self.gram) * rest).sum())
        return max(lost, 0.0) / total if total > 0.0 else 0.0


def cut_tree(tree: Matrix, k: int) -> Labels:
    """Return k clusters of a hierarchy in scipy's form, numbered by first member: its last k - 1 merges are undone.

    Unlike a cut at a height, this gives no fewer clusters where several merges have the same height.
    """
    n, merges = len(tree) + 1, len(tree) + 1 - k
    merged = tree[:merges, :2].astype(np.int64).ravel()
    into = n + np.repeat(np.arange(merges), 2)
    edges = coo_array((np.ones(len(into), np.int8), (merged, into)), shape=(n + merges, n + merges))
    return renumber(connected_components(edges, directed=False)[1][:n])[0]


def role_gram(view: GraphView, group: FoldGroup, role: Role) -> Matrix:
    """Return the inner products of what the members of one role hold for each unit, shape (n_units, n_units)."""
    gram = np.zeros((group.size, group.size))
    for member in group.with_role(role):
        rows = member_rows(view, member).astype(np.float64)
        gram += rows @ rows.T
    require_finite(group, gram)
    return gram
