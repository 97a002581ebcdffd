"""Spectral clustering: robust where the library's is not."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from onnxfold.cluster.clusterings.spectral import affinity, embed
from onnxfold.cluster.clusterings.spectral import spectral as spectral_clusters
from onnxfold.cluster.gram import Points

#: Hypothesis draws floats from the ends first; what goes wrong shows in between as well.
SHARES = st.sampled_from([0.0, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0])
BOUNDED = settings(max_examples=30)


def spectral(points: NDArray[np.float64], weights: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    return spectral_clusters(Points(points @ points.T), weights, k)


def _same(a: NDArray[np.int64], b: NDArray[np.int64]) -> bool:
    return np.array_equal(np.equal.outer(a, a), np.equal.outer(b, b))


@BOUNDED
@given(
    seed=st.integers(0, 2**16),
    n=st.sampled_from([1, 2, 15, 29, 30]),
    share=SHARES,
    distinct=st.integers(1, 30),
    spread=st.sampled_from([1e-6, 1.0, 1e6]),
)
def test_exactly_k_clusters_and_no_warning(seed: int, n: int, share: float, distinct: int, spread: float) -> None:
    """Coincident points, points so far away that their affinities vanish, any k."""
    rng = np.random.default_rng(seed)
    points = (rng.standard_normal((distinct, 3)) * np.where(rng.random((distinct, 1)) < 0.2, spread, 1.0))[
        rng.integers(0, distinct, n)
    ]
    k = max(1, round(share * n))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        labels = spectral(points, rng.integers(1, 4, n).astype(np.float64), k)
    assert sorted(set(labels.tolist())) == list(range(k))


def test_clusters_that_no_mean_describes() -> None:
    """Two rings, one around the other: what k-means cannot tell apart."""
    angle = np.arange(60) / 60 * 2 * np.pi
    ring = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    points = np.concatenate([ring, 6 * ring])
    labels = spectral(points, np.ones(120), 2)
    assert _same(labels, np.repeat([0, 1], 60))


@pytest.mark.parametrize("distance", [20.0, 1e9])
def test_disconnected_parts_are_clusters(distance: float) -> None:
    rng = np.random.default_rng(0)
    truth = rng.permutation(np.repeat(np.arange(5), 9))
    points = distance * np.eye(5)[truth] + rng.standard_normal((45, 5))
    assert _same(spectral(points, np.ones(45), 5), truth)


def test_a_weight_is_a_number_of_copies() -> None:
    """Oracle: the embedding of every copy; eigenvectors are unique but for a rotation."""
    rng = np.random.default_rng(1)
    points, copies = rng.standard_normal((12, 4)), rng.integers(1, 5, 12)
    affinities, origin = affinity(Points(points @ points.T)), np.repeat(np.arange(12), copies)
    embedded = embed(affinities, copies.astype(np.float64), 5)
    expanded = embed(affinities[np.ix_(origin, origin)], np.ones(len(origin)), 5)
    np.testing.assert_allclose((embedded @ embedded.T)[np.ix_(origin, origin)], expanded @ expanded.T, atol=1e-9)


@BOUNDED
@given(seed=st.integers(0, 2**16), n=st.sampled_from([8, 9, 15, 29, 30]), share=SHARES)
def test_the_order_of_points_does_not_matter(seed: int, n: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    points, weights, order = rng.standard_normal((n, 6)), rng.uniform(1, 4, n), rng.permutation(n)
    k = max(1, round(share * n))
    labels = spectral(points, weights, k)
    assert _same(spectral(points[order], weights[order], k), labels[order])


def test_extremes() -> None:
    points = np.random.default_rng(0).standard_normal((6, 2))
    np.testing.assert_array_equal(spectral(points, np.ones(6), 6), np.arange(6))
    np.testing.assert_array_equal(spectral(points, np.ones(6), 1), np.zeros(6))
    assert sorted(set(spectral(np.zeros((5, 2)), np.ones(5), 3).tolist())) == [0, 1, 2]
    with pytest.raises(ValueError, match="k=7 should be between 1 and n_points=6"):
        spectral(points, np.ones(6), 7)
