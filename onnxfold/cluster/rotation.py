r"""Rotation of channels to their principal axes, where any orthonormal basis of them will do.

Let channels x have second moments M about zero, and let V hold orthonormal columns. Keeping V^T x, and handing
V V^T x on, costs a consumer whose columns have the Gram matrix G

    trace(G (I - V V^T) M (I - V V^T))

of its output's energy trace(G M). The partition is P = V^T, Q = V: producers are multiplied by V^T, consumers by V. The
k leading eigenvectors of M, averaged over the consumers and each divided by its trace, lose least of x itself; equal
channels, and such that are always zero, cost nothing.

References
----------
SliceGPT: arXiv 2401.15024.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onnxfold.channels.declarations import Role
from onnxfold.channels.group import FoldGroup, Member
from onnxfold.channels.rows import rows_of
from onnxfold.cluster.candidates import Candidates
from onnxfold.cluster.partition import ChannelPartition
from onnxfold.graph.tensors import Matrix
from onnxfold.graph.view import GraphView
from onnxfold.statistics.observe import ConsumerMoments

#: Relative energy below which the rest of a spectrum is rounding.
_ROUNDING = 1e-12


class Rotation(ChannelPartition):
    """The fold of channels onto orthonormal axes; no channel belongs to any of them.

    Parameters
    ----------
    axes : ndarray of shape (n, k)
        Orthonormal columns V.
    """

    def __init__(self, axes: Matrix) -> None:
        n, k = axes.shape
        object.__setattr__(self, "labels", np.full(n, -1, np.int64))
        object.__setattr__(self, "encode", np.ascontiguousarray(axes.T))
        object.__setattr__(self, "decode", np.ascontiguousarray(axes))
        object.__setattr__(self, "representatives", np.arange(k))


@dataclass(frozen=True, eq=False)
class Rotations(Candidates):
    """Principal axes, the leading ones first.

    Parameters
    ----------
    axes : ndarray of shape (n, n)
        Orthonormal columns.
    costs : ndarray of shape (n + 1,)
        What the consumers lose with k of them, by k.
    """

    axes: Matrix
    costs: Matrix

    @property
    def cluster(self) -> str:
        """Principal axes."""
        return "rotation"

    @property
    def errors(self) -> Matrix:
        """The sums over the consumers."""
        return self.costs

    def partition(self, k: int) -> ChannelPartition:
        """Return the leading k axes."""
        return Rotation(self.axes[:, :k])


def rotations(moments: Sequence[tuple[Matrix, Matrix]]) -> Rotations:
    """Return the principal axes of channels.

    Parameters
    ----------
    moments : sequence of (ndarray, ndarray)
        For every consumer the second moments about zero of what it reads, and the Gram matrix of its columns; both of
        shape (n, n). At least one.
    """
    n = len(moments[0][0])
    total = np.zeros((n, n))
    known = [(m, g) for m, g in moments if np.isfinite(m).all() and np.trace(m) > 0.0]
    for m, _ in known:
        total += m / np.trace(m)
    _, vectors = np.linalg.eigh((total + total.T) / 2.0)
    axes = np.ascontiguousarray(vectors[:, ::-1])
    axes *= np.where(axes[np.abs(axes).argmax(axis=0), np.arange(n)] < 0.0, -1.0, 1.0)
    costs = np.zeros(n + 1)
    for m, g in known:
        product = (axes.T @ g @ axes) * (axes.T @ m @ axes)
        whole = float(product.sum())
        if not whole > 0.0:
            continue
        # What lies in the trailing block [k:, k:].
        left = np.cumsum(np.cumsum(product[::-1, ::-1], axis=0), axis=1).diagonal()[::-1] / whole
        costs[:n] += np.where(left > _ROUNDING, left, 0.0)
    costs = np.maximum.accumulate(costs[::-1])[::-1].copy()
    costs[0], costs[n] = np.inf, 0.0
    return Rotations(axes, costs)


def seen_moments(
    view: GraphView, group: FoldGroup, seen: Sequence[ConsumerMoments], words: Matrix | None
) -> list[tuple[Matrix, Matrix]]:
    """Return what :func:`rotations` takes: of a table of words, its rows as common as they are; else what was seen.

    Parameters
    ----------
    view : GraphView
        The graph.
    group : FoldGroup
        The group.
    seen : sequence of ConsumerMoments
        Moments of its consumers; without them, its producers' rows stand for what they compute.
    words : ndarray of shape (rows,), optional
        How common every token is.
    """
    grams = [one.gram for one in seen] or [_gram(view, member) for member in group.with_role(Role.CONSUMER)]
    producers = [_rows(view, member) for member in group.with_role(Role.PRODUCER)]
    if words is not None and [rows.shape[1] for rows in producers] == [len(words)]:
        return [((producers[0] * words) @ producers[0].T, gram) for gram in grams]
    if seen:
        return [(one.trusted, one.gram) for one in seen]
    moment: Matrix = np.sum([rows @ rows.T for rows in producers], axis=0)
    return [(moment, gram) for gram in grams]


def _rows(view: GraphView, member: Member) -> Matrix:
    """Return what a weight holds for every channel, shape (n_units, rest)."""
    return np.asarray(rows_of(view, member), np.float64).reshape(len(member.positions), -1)


def _gram(view: GraphView, member: Member) -> Matrix:
    columns = _rows(view, member)
    return columns @ columns.T
