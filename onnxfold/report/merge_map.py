"""The channels that became one, per fold group."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class MergeMap:
    """How the channels of a group were merged, in a form that grows with their number only.

    With n channels before and k after the fold, producers were multiplied by P (k x n) and consumers by Q (n x k):

        P[c, i] = 1 / (members of cluster c),   Q[i, c] = 1   for every channel i with clusters[i] = c,

    and 0 elsewhere.

    Parameters
    ----------
    group : str
        Name of the group.
    clusters : tuple of int
        Cluster of each channel, numbered by first member, which is also the order of the folded channels; -1 for a
        channel that was dropped.
    """

    group: str
    clusters: tuple[int, ...]

    @property
    def P(self) -> Any:  # noqa: N802  # the name of the mathematics
        """The matrix of producers, an ndarray of shape (k, n)."""
        decode = self.Q
        return (decode / decode.sum(axis=0)).T

    @property
    def Q(self) -> Any:  # noqa: N802
        """The matrix of consumers, an ndarray of shape (n, k)."""
        import numpy as np

        return (np.array(self.clusters)[:, None] == np.arange(max(self.clusters) + 1)).astype(np.float64)
