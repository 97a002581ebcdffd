"""k-means with exactly k clusters."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.cluster.hierarchy import linkage
from sklearn.cluster import KMeans

from onnxfold.cluster.clusterings.kmeans import kmeans as kmeans_by_products
from onnxfold.cluster.gram import Points as Products
from onnxfold.cluster.gram import cut_tree
from onnxfold.cluster.partition import renumber

Points = NDArray[np.float64]


def kmeans(points: Points, weights: Points, k: int) -> NDArray[np.int64]:
    return kmeans_by_products(Products(points @ points.T), weights, k)


def _cost(points: Points, weights: Points, labels: NDArray[np.int64]) -> float:
    total = 0.0
    for c in np.unique(labels):
        inside, w = points[labels == c], weights[labels == c]
        mean = (w[:, None] * inside).sum(axis=0) / w.sum()
        total += float((w * ((inside - mean) ** 2).sum(axis=1)).sum())
    return total


@settings(max_examples=40)
@given(seed=st.integers(0, 2**16), n=st.integers(1, 30), share=st.floats(0, 1), distinct=st.integers(1, 30))
def test_exactly_k_clusters_even_where_points_coincide(seed: int, n: int, share: float, distinct: int) -> None:
    """At any ratio, no cluster is empty: an empty one would be a channel made of nothing."""
    rng = np.random.default_rng(seed)
    places = rng.standard_normal((distinct, 3))
    points = places[rng.integers(0, distinct, n)]
    k = max(1, round(share * n))
    labels = kmeans(points, rng.integers(1, 4, n).astype(np.float64), k)
    assert sorted(set(labels.tolist())) == list(range(k))


def test_all_points_in_one_place() -> None:
    labels = kmeans(np.zeros((7, 2)), np.ones(7), 5)
    assert sorted(set(labels.tolist())) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("narrow", [0, 4096])
@pytest.mark.parametrize("k", [2, 11, 25, 39])
@pytest.mark.parametrize("seed", range(3))
def test_clusters_are_those_of_the_library(seed: int, k: int, narrow: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: Lloyd's iterations of scikit-learn on the points themselves, from the same start."""
    monkeypatch.setattr("onnxfold.cluster.clusterings.kmeans._NARROW", narrow)
    random = np.random.default_rng(seed)
    points = random.standard_normal((40, 6)) + 3.0 * random.standard_normal((8, 6))[random.integers(0, 8, 40)]
    weights = random.integers(1, 4, 40).astype(np.float64)
    start = cut_tree(np.asarray(linkage(points, "ward")), k)
    means = np.stack([np.average(points[start == c], axis=0, weights=weights[start == c]) for c in range(k)])
    library = KMeans(k, init=means, n_init=1, max_iter=50).fit(points, sample_weight=weights).labels_
    np.testing.assert_array_equal(renumber(kmeans(points, weights, k))[0], renumber(library.astype(np.int64))[0])


def test_well_separated_clusters_are_found() -> None:
    rng = np.random.default_rng(0)
    truth = rng.permutation(np.repeat(np.arange(8), 5))
    points = 100 * rng.standard_normal((8, 4))[truth] + rng.standard_normal((40, 4))
    labels = kmeans(points, np.ones(40), 8)
    np.testing.assert_array_equal(np.equal.outer(labels, labels), np.equal.outer(truth, truth))


def test_weights_count() -> None:
    """A heavy point holds its mean where it is, and a light neighbour leaves for the others."""
    points = np.array([[0.0], [1.0], [1.7], [2.2]])
    light = kmeans(points, np.ones(4), 2)
    assert light[0] == light[1] != light[2] == light[3]
    heavy = kmeans(points, np.array([100.0, 1.0, 1.0, 1.0]), 2)
    assert heavy[0] != heavy[1] == heavy[2] == heavy[3]


def test_no_worse_than_its_start_and_than_random_starts() -> None:
    points = np.random.default_rng(3).standard_normal((64, 30))
    ones = np.ones(64)
    cost = _cost(points, ones, kmeans(points, ones, 40))
    assert cost <= _cost(points, ones, cut_tree(np.asarray(linkage(points, "ward")), 40)) + 1e-9
    random_start = KMeans(40, n_init=1, random_state=0).fit(points)
    assert cost <= random_start.inertia_


@pytest.mark.parametrize("k", [0, 4, -1])
def test_impossible_numbers_of_clusters(k: int) -> None:
    with pytest.raises(ValueError, match=f"k={k} should be between 1 and n_points=3"):
        kmeans(np.zeros((3, 1)), np.ones(3), k)


def test_extremes() -> None:
    points = np.random.default_rng(0).standard_normal((5, 2))
    np.testing.assert_array_equal(kmeans(points, np.ones(5), 5), np.arange(5))
    np.testing.assert_array_equal(kmeans(points, np.ones(5), 1), np.zeros(5))
