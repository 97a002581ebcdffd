r"""Partitions of channels as a pair of matrices.

A fold of n channels to k is an encode matrix P (k x n), applied to everything that produces the
channels, and a decode matrix Q (n x k), applied to everything that consumes them: x' = P x, and a
consumer W x becomes (W Q) x'. Mean folding with cluster matrix U (n x k) is P = (U^T U)^-1 U^T, Q = U;
selecting channels is a P of unit rows with Q = P^T. Nothing downstream assumes more than the two matrices, not even
that every channel belongs to a cluster.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from onnxfold.graph.tensors import Matrix

Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ChannelPartition:
    """The assignment of channels to merged channels.

    Parameters
    ----------
    labels : ndarray of shape (n,)
        Cluster of each channel, numbered by first member; -1 for channels that no cluster takes.
    encode : ndarray of shape (k, n)
        P, applied to producers.
    decode : ndarray of shape (n, k)
        Q, applied to consumers.
    representatives : ndarray of shape (k,)
        The channel whose place each cluster takes, ascending.
    """

    labels: Labels
    encode: Matrix
    decode: Matrix
    representatives: Labels

    @property
    def size(self) -> int:
        """Number of channels n."""
        return len(self.labels)

    @property
    def clusters(self) -> int:
        """Number of clusters k."""
        return len(self.representatives)

    @property
    def is_identity(self) -> bool:
        """Whether no channel is merged or dropped."""
        return self.clusters == self.size

    def only_merges(self, classes: Labels) -> bool:
        """Whether every channel is in a cluster, and every cluster is the mean of channels of one class."""
        if (self.labels < 0).any() or not np.array_equal(classes, classes[self.representatives][self.labels]):
            return False
        plain = np.zeros_like(self.decode)
        plain[np.arange(self.size), self.labels] = 1.0
        inside = np.where(plain.T > 0.0, self.encode, 0.0)
        return (
            np.array_equal(self.decode, plain)
            and np.allclose(inside.sum(axis=1), 1.0)
            and not (self.encode != inside).any()
        )

    @property
    def cluster_sizes(self) -> Labels:
        """Number of members per cluster, shape (k,)."""
        return np.bincount(self.labels[self.labels >= 0], minlength=self.clusters)


class Means(ChannelPartition):
    """The mean/sum fold of a labelling.

    The two matrices, which a plan of many layers has no room for, are built only on request.

    Parameters
    ----------
    labels : ndarray of shape (n,)
        Clusters, numbered by first member; -1 for channels that are dropped.
    representatives : ndarray of shape (k,)
        The first member of each.
    """

    def __init__(self, labels: Labels, representatives: Labels) -> None:
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "representatives", representatives)

    @property
    def encode(self) -> Matrix:
        """P: averages the members, shape (k, n)."""
        kept = self._kept_units
        inner = self._sums(kept)
        means: Matrix = inner.T / inner.sum(axis=0)[:, None]
        if len(kept) == self.size:
            return means
        matrix = np.zeros((self.clusters, self.size))
        matrix[:, kept] = means
        return matrix

    def mean_rows(self, rows: Matrix) -> Matrix:
        """Return P times rows of shape (n, m), without building P: shape (k, m)."""
        kept = self._kept_units
        share = 1.0 / self.cluster_sizes[self.labels[kept]]
        means: Matrix = csr_array((share, (self.labels[kept], kept)), shape=(self.clusters, self.size)) @ rows
        return means

    @property
    def decode(self) -> Matrix:
        """Q: adds the members' columns, shape (n, k)."""
        matrix = np.zeros((self.size, self.clusters))
        matrix[self._kept_units] = self._sums(self._kept_units)
        return matrix

    @property
    def _kept_units(self) -> Labels:
        return np.flatnonzero(self.labels >= 0)

    def _sums(self, kept: Labels) -> Matrix:
        matrix = np.zeros((len(kept), self.clusters))
        matrix[np.arange(len(kept)), self.labels[kept]] = 1.0
        return matrix


class Selection(ChannelPartition):
    """Selection of channels; the others are dropped. The two matrices are built only on request.

    Parameters
    ----------
    representatives : ndarray of shape (k,)
        The channels that stay, ascending.
    n : int
        Number of channels.
    """

    def __init__(self, representatives: Labels, n: int) -> None:
        labels = np.full(n, -1, np.int64)
        labels[representatives] = np.arange(len(representatives))
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "representatives", representatives)

    @property
    def encode(self) -> Matrix:
        """P: rows of the identity, shape (k, n)."""
        matrix = np.zeros((self.clusters, self.size))
        matrix[np.arange(self.clusters), self.representatives] = 1.0
        return matrix

    @property
    def decode(self) -> Matrix:
        """Q, the transpose of P."""
        return np.ascontiguousarray(self.encode.T)


def mean_partition(labels: npt.ArrayLike) -> ChannelPartition:
    """Return the mean/sum fold of a labelling.

    Parameters
    ----------
    labels : array-like of int, shape (n,)
        Any numbering of the clusters.

    Returns
    -------
    ChannelPartition
        P averages the members, Q adds their columns.

    Examples
    --------
    >>> p = mean_partition([5, 2, 5])
    >>> p.labels.tolist(), p.encode.tolist()
    ([0, 1, 0], [[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]])
    """
    canonical, representatives = renumber(np.asarray(labels))
    return Means(canonical, representatives)


def select_partition(kept: npt.ArrayLike, n: int) -> ChannelPartition:
    """Return the partition that keeps some channels as they are and drops the others.

    Parameters
    ----------
    kept : array-like of int, shape (k,)
        The channels to keep, in any order, each once.
    n : int
        Number of channels.

    Returns
    -------
    ChannelPartition
        P holds rows of the identity, Q is its transpose: the columns of dropped channels vanish.

    Raises
    ------
    ValueError
        If nothing is kept, or a channel twice, or one that does not exist.

    Examples
    --------
    >>> p = select_partition([2, 0], 3)
    >>> p.labels.tolist(), p.encode.tolist()
    ([0, -1, 1], [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    """
    representatives = np.sort(np.asarray(kept, np.int64))
    if not len(representatives) or representatives[0] < 0 or representatives[-1] >= n:
        raise ValueError(f"kept={representatives.tolist()} should be channels between 0 and {n - 1}, at least one")
    if (np.diff(representatives) == 0).any():
        raise ValueError(f"kept={representatives.tolist()} should hold every channel once")
    return Selection(representatives, n)


def partial_partition(labels: npt.ArrayLike) -> ChannelPartition:
    """Return the mean/sum fold of a labelling in which -1 marks channels that are dropped.

    It is a selection if no channels go together.

    Examples
    --------
    >>> p = partial_partition([7, -1, 7])
    >>> p.labels.tolist(), p.encode.tolist(), p.decode.tolist()
    ([0, -1, 0], [[0.5, 0.0, 0.5]], [[1.0], [0.0], [1.0]])
    """
    numbers = np.asarray(labels, np.int64)
    kept = np.flatnonzero(numbers >= 0)
    inner, first = renumber(numbers[kept])
    if len(first) == len(kept):
        return Selection(kept, len(numbers))
    canonical = np.full(len(numbers), -1, np.int64)
    canonical[kept] = inner
    return Means(canonical, kept[first])


def check_clusters(k: int, n: int, blocks: int = 1) -> None:
    """Raise ValueError unless n points in `blocks` equal blocks can form k non-empty clusters, equally many in each."""
    if not 1 <= k <= n:
        raise ValueError(f"k={k} should be between 1 and n_points={n}")
    if k % blocks:
        raise ValueError(f"k={k} should be a multiple of the group's {blocks} blocks")


def renumber(labels: Labels) -> tuple[Labels, Labels]:
    """Return labels numbered by first member, and each cluster's first member."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rank[inverse.reshape(-1)].astype(np.int64), first[order].astype(np.int64)
