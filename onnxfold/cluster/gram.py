"""Exact reduction of long feature vectors to as many dimensions as there are points."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from onnxfold.machine import memory
from onnxfold.statistics.moments import remove_mean

Points = npt.NDArray[np.float64]


def rotate(blocks: Iterable[npt.NDArray[np.floating]]) -> Points:
    r"""Return n points in n dimensions with the distances of n points in d >> n dimensions.

    With the features X (n x d) centred, X X^T = Q L Q^T; the rows of Q sqrt(L) have the same pairwise distances and
    weighted means as the rows of X, so k-means on them gives the same clusters. X is never formed: its Gram
    matrix is the sum of its blocks' Gram matrices.
    """
    return points_of(centred_gram(blocks))


def centred_gram(blocks: Iterable[npt.NDArray[np.floating]]) -> Points:
    """Return the Gram matrix of n centred points."""
    gram: Points | None = None
    for block in blocks:
        memory.require(4 * memory.array_bytes((len(block), len(block)), 8), f"comparing {len(block):,} channels")
        rest, _ = remove_mean(block)
        part = np.asarray(rest @ rest.T, np.float64)
        if gram is None:
            gram = part
        else:
            gram += part
        del part
    if gram is None:
        raise ValueError("at least one feature block is needed")
    centring = gram.mean(axis=0)
    gram -= centring[None, :]
    gram -= centring[:, None]
    gram += centring.mean()
    return gram


def points_of(gram: Points) -> Points:
    """Return points whose inner products a Gram matrix holds."""
    if len(gram) == 1:
        return np.zeros((1, 1))
    values, vectors = np.linalg.eigh(gram)
    keep = values > max(values[-1], 0.0) * 1e-12
    if not keep.any():
        return np.zeros((len(gram), 1))
    points: Points = vectors[:, keep] * np.sqrt(values[keep])
    return points
