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
Samples = npt.NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class ChannelPartition:
    """The assignment of n channels to k merged channels."""

    labels: Labels  # cluster of each channel, numbered by first member; -1 for channels that no cluster takes
    representatives: Labels  # the channel whose place each cluster takes, ascending, shape (k,)
    #: P of shape (k, n) and Q of shape (n, k), where they do not follow from the labels. Those that do, which a plan of
    #: many layers has no room for, are built only on request.
    matrices: tuple[Matrix, Matrix] | None = None

    @property
    def size(self) -> int:
        """Number of channels n."""
        return len(self.labels)

    @property
    def clusters(self) -> int:
        """Number of clusters k."""
        return len(self.representatives)

    @property
    def cluster_sizes(self) -> Labels:
        """Number of members per cluster, shape (k,)."""
        return np.bincount(self.labels[self.labels >= 0], minlength=self.clusters)

    @property
    def is_identity(self) -> bool:
        """Whether no channel is merged or dropped."""
        return self.clusters == self.size

    @property
    def only_selects(self) -> bool:
        """Whether the channels that are left stay as they are."""
        return self.matrices is None and len(self._kept_units) == self.clusters

    @property
    def rotates(self) -> bool:
        """Whether axes are kept, to none of which a channel belongs."""
        return bool((self.labels < 0).all())

    def only_merges(self, classes: Labels) -> bool:
        """Whether every channel is in a cluster, and every cluster is the mean of channels of one class."""
        if self.matrices is not None or (self.labels < 0).any():
            return False
        return np.array_equal(classes, classes[self.representatives][self.labels])

    @property
    def encode(self) -> Matrix:
        """P, applied to producers, shape (k, n): by labels, it averages the members."""
        if self.matrices is not None:
            return self.matrices[0]
        sums = self.decode
        means: Matrix = (sums / sums.sum(axis=0)).T
        # Rounding of products depends on how a matrix lies in memory: that of channels that are dropped lies by rows.
        return means if len(self._kept_units) == self.size else np.ascontiguousarray(means)

    @property
    def decode(self) -> Matrix:
        """Q, applied to consumers, shape (n, k): by labels, it adds the members' columns."""
        if self.matrices is not None:
            return self.matrices[1]
        matrix = np.zeros((self.size, self.clusters))
        matrix[self._kept_units, self.labels[self._kept_units]] = 1.0
        return matrix

    def encode_samples(self, samples: Samples) -> Samples:
        """Return P applied to samples of shape (S, n)."""
        if self.only_selects:
            return samples[:, self.representatives]
        return np.asarray(samples @ self.encode.T.astype(samples.dtype))

    def encode_moments(self, covariance: Matrix) -> tuple[Matrix, Matrix]:
        """Return P C and P C P^T."""
        if self.matrices is not None:
            cross: Matrix = self.encode @ covariance
            return cross, cross @ self.encode.T
        if self.only_selects:
            cross = covariance[self.representatives] + 0.0
            return cross, cross[:, self.representatives]
        labels = self.labels[self._kept_units]
        share = 1.0 / self.cluster_sizes[labels]
        means = csr_array((share, (labels, self._kept_units)), shape=(self.clusters, self.size))
        cross = means @ covariance
        return cross, (means @ cross.T).T.copy()

    def by_position(self, count: int) -> "ChannelPartition":
        """Return the partition of the positions of channels that have so many each: the same of every place."""
        inside = np.arange(count)
        labels = np.where(self.labels[:, None] < 0, -1, self.labels[:, None] * count + inside)
        representatives = self.representatives[:, None] * count + inside
        matrices = None
        if self.matrices is not None:
            encode, decode = (np.kron(matrix, np.eye(count)).astype(np.float64) for matrix in self.matrices)
            matrices = encode, decode
        return ChannelPartition(labels.reshape(-1), representatives.reshape(-1), matrices)

    @property
    def _kept_units(self) -> Labels:
        return np.flatnonzero(self.labels >= 0)


def axes_partition(encode: Matrix, decode: Matrix) -> ChannelPartition:
    """Return the fold of channels onto axes, the rows of P, which take the first places."""
    return ChannelPartition(np.full(len(decode), -1, np.int64), np.arange(len(encode)), (encode, decode))


def mean_partition(labels: npt.ArrayLike) -> ChannelPartition:
    """Return the mean/sum fold of a labelling, with any numbers for clusters and -1 for channels that are dropped.

    P averages the members, Q adds their columns.
    """
    numbers = np.asarray(labels, np.int64)
    kept = np.flatnonzero(numbers >= 0)
    inner, first = renumber(numbers[kept])
    canonical = np.full(len(numbers), -1, np.int64)
    canonical[kept] = inner
    return ChannelPartition(canonical, kept[first])


def select_partition(kept: npt.ArrayLike, n: int) -> ChannelPartition:
    """Return the partition that keeps some of n channels as they are, in any order, and drops the others.

    P holds rows of the identity, Q is its transpose: the columns of dropped channels vanish.
    """
    labels = np.full(n, -1, np.int64)
    labels[np.asarray(kept, np.int64)] = kept
    return mean_partition(labels)


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
    rank = np.argsort(order)
    return rank[inverse.reshape(-1)].astype(np.int64), first[order].astype(np.int64)
