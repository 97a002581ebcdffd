"""Greedy pairs of normalised points."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from onnxfold.cluster.clusterings.agglomerative import greedy as greedy_pairs
from onnxfold.cluster.gram import Points

#: Hypothesis draws floats from the ends first; what goes wrong shows in between as well.
SHARES = st.sampled_from([0.0, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0])
BOUNDED = settings(max_examples=40)


def greedy(points: NDArray[np.float64], weights: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    return greedy_pairs(Points(points @ points.T), weights, k)


def _same(a: NDArray[np.int64], b: NDArray[np.int64]) -> bool:
    return np.array_equal(np.equal.outer(a, a), np.equal.outer(b, b))


def _by_hand(points: NDArray[np.float64], weights: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    """All pairs of cluster means, in every step."""
    unit = points / np.linalg.norm(points, axis=1, keepdims=True)
    clusters = [[i] for i in range(len(points))]
    while len(clusters) > k:
        means = [np.average(unit[c], axis=0, weights=weights[c]) for c in clusters]
        pairs = [(i, j) for j in range(len(clusters)) for i in range(j)]
        i, j = min(pairs, key=lambda p: float(np.linalg.norm(means[p[0]] - means[p[1]])))
        clusters[i] += clusters.pop(j)
    labels = np.zeros(len(points), np.int64)
    for number, members in enumerate(clusters):
        labels[members] = number
    return labels


@BOUNDED
@given(seed=st.integers(0, 2**16), n=st.sampled_from([1, 2, 7, 13, 14]), share=SHARES)
def test_nearest_weighted_means_of_unit_vectors_merge(seed: int, n: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    points, weights = rng.standard_normal((n, 4)), rng.integers(1, 9, n).astype(np.float64)
    k = max(1, round(share * n))
    np.testing.assert_array_equal(greedy(points, weights, k), _by_hand(points, weights, k))


def test_length_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    points = rng.standard_normal((30, 6))
    stretched = points * rng.uniform(0.1, 10, (30, 1))
    np.testing.assert_array_equal(*(greedy(p, np.ones(30), 12) for p in (points, stretched)))


def test_weights_count() -> None:
    """The first pair's mean stays where its heavy member is: near enough to the third direction, or not."""
    degrees = np.array([0.0, 40.0, 110.0, 195.0])
    points = np.stack([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))], axis=1)
    assert greedy(points, np.array([50.0, 1, 1, 1]), 2).tolist() == [0, 0, 1, 1]
    assert greedy(points, np.array([1.0, 50, 1, 1]), 2).tolist() == [0, 0, 0, 1]


@BOUNDED
@given(seed=st.integers(0, 2**16), n=st.sampled_from([1, 2, 15, 29, 30]), share=SHARES, distinct=st.integers(1, 30))
def test_exactly_k_clusters_even_where_points_coincide(seed: int, n: int, share: float, distinct: int) -> None:
    rng = np.random.default_rng(seed)
    place = rng.integers(0, distinct, n)
    points = rng.standard_normal((distinct, 3))[place] * (place > 0)[:, None]  # one place is the origin
    k = max(1, round(share * n))
    labels = greedy(points, rng.integers(1, 4, n).astype(np.float64), k)
    assert list(dict.fromkeys(labels.tolist())) == list(range(k))
    if k <= len(set(place.tolist())):
        assert all(len(set(labels[place == p].tolist())) == 1 for p in place)


@BOUNDED
@given(seed=st.integers(0, 2**16), n=st.sampled_from([1, 2, 15, 29, 30]), share=SHARES)
def test_the_order_of_points_does_not_matter(seed: int, n: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    points, weights, order = rng.standard_normal((n, 5)), rng.integers(1, 4, n).astype(np.float64), rng.permutation(n)
    k = max(1, round(share * n))
    labels = greedy(points, weights, k)
    assert _same(greedy(points[order], weights[order], k), labels[order])


def test_extremes() -> None:
    points = np.random.default_rng(0).standard_normal((6, 2))
    np.testing.assert_array_equal(greedy(points, np.ones(6), 6), np.arange(6))
    np.testing.assert_array_equal(greedy(points, np.ones(6), 1), np.zeros(6))
    assert sorted(set(greedy(np.zeros((5, 2)), np.ones(5), 3).tolist())) == [0, 1, 2]
    with pytest.raises(ValueError, match="k=7 should be between 1 and n_points=6"):
        greedy(points, np.ones(6), 7)
