"""Hierarchies of weighted points: scipy's, exactly k clusters always."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import cdist, squareform

from onnxfold.cluster.clusterings.agglomerative import agglomerate
from onnxfold.cluster.clusterings.ifm import merge_nearest
from onnxfold.cluster.gram import Points

#: Hypothesis draws floats from the ends first; what goes wrong shows in between as well.
SHARES = st.sampled_from([0.0, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0])
BOUNDED = settings(max_examples=25)
Labels = NDArray[np.int64]

each_linkage = pytest.mark.parametrize("name", ["ward", "complete", "average", "single"])


def cluster(name: Any, points: NDArray[np.float64], weights: NDArray[np.float64], k: int) -> Labels:
    return agglomerate(name, Points(points @ points.T), weights, k)


def same_clusters(a: Labels, b: Labels) -> bool:
    return np.array_equal(np.equal.outer(a, a), np.equal.outer(b, b))


@each_linkage
@BOUNDED
@given(seed=st.integers(0, 2**16), n=st.sampled_from([2, 3, 20, 39, 40]), share=SHARES)
def test_unit_weights_give_scipys_hierarchy(name: str, seed: int, n: int, share: float) -> None:
    points = np.random.default_rng(seed).standard_normal((n, 5))
    k = max(1, round(share * n))
    expected = fcluster(linkage(points, name), k, "maxclust")
    assert same_clusters(cluster(name, points, np.ones(n), k), expected)


@each_linkage
@BOUNDED
@given(seed=st.integers(0, 2**16), n=st.sampled_from([2, 3, 6, 11, 12]), share=SHARES)
def test_a_weight_is_a_number_of_copies(name: str, seed: int, n: int, share: float) -> None:
    """Oracle: scipy on every copy; copies lie in one place and merge first."""
    rng = np.random.default_rng(seed)
    points, copies = rng.standard_normal((n, 3)), rng.integers(1, 6, n)
    k = max(1, round(share * n))
    expanded = fcluster(linkage(np.repeat(points, copies, axis=0), name), k, "maxclust")
    expected = expanded[np.cumsum(copies) - copies]
    assert same_clusters(cluster(name, points, copies.astype(np.float64), k), expected)


@each_linkage
@BOUNDED
@given(seed=st.integers(0, 2**16), n=st.sampled_from([1, 2, 15, 29, 30]), share=SHARES, distinct=st.integers(1, 30))
def test_exactly_k_clusters_even_where_points_coincide(
    name: str, seed: int, n: int, share: float, distinct: int
) -> None:
    rng = np.random.default_rng(seed)
    place = rng.integers(0, distinct, n)
    points = rng.standard_normal((distinct, 3))[place]
    k = max(1, round(share * n))
    labels = cluster(name, points, rng.integers(1, 4, n).astype(np.float64), k)
    assert list(dict.fromkeys(labels.tolist())) == list(range(k)), "every cluster has a member, first ones first"
    if k <= len(set(place.tolist())):
        assert all(len(set(labels[place == p].tolist())) == 1 for p in place), "points in one place stay together"


@each_linkage
@BOUNDED
@given(seed=st.integers(0, 2**16), n=st.sampled_from([2, 3, 15, 29, 30]), share=SHARES)
def test_the_order_of_points_does_not_matter(name: str, seed: int, n: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    points, weights, order = rng.standard_normal((n, 4)), rng.integers(1, 4, n).astype(np.float64), rng.permutation(n)
    k = max(1, round(share * n))
    labels = cluster(name, points, weights, k)
    assert same_clusters(cluster(name, points[order], weights[order], k), labels[order])


@each_linkage
def test_extremes(name: str) -> None:
    points = np.random.default_rng(0).standard_normal((6, 2))
    np.testing.assert_array_equal(cluster(name, points, np.ones(6), 6), np.arange(6))
    np.testing.assert_array_equal(cluster(name, points, np.ones(6), 1), np.zeros(6))
    assert sorted(set(cluster(name, np.zeros((5, 2)), np.ones(5), 3).tolist())) == [0, 1, 2]
    np.testing.assert_array_equal(cluster(name, np.zeros((1, 1)), np.ones(1), 1), [0])
    for k in (0, 7, -1):
        with pytest.raises(ValueError, match=f"k={k} should be between 1 and n_points=6"):
            cluster(name, points, np.ones(6), k)


@settings(BOUNDED, max_examples=150)
@given(seed=st.integers(0, 2**16), n=st.sampled_from([2, 5, 12]), share=SHARES)
def test_nearest_pair_first_whatever_the_linkage(seed: int, n: int, share: float) -> None:
    """Distances drawn anew at every merge, few different ones: of equal ones the lowest indices go first."""
    k = max(1, round(share * n))

    def draw(rng: np.random.Generator) -> NDArray[np.float64]:
        return rng.integers(0, 9, n).astype(np.float64)

    start = np.stack([draw(np.random.default_rng([seed, i])) for i in range(n)])
    start = np.triu(start) + np.triu(start, 1).T
    merges: list[tuple[int, int]] = []

    def merge(u: int, v: int) -> NDArray[np.float64]:
        merges.append((u, v))
        return draw(np.random.default_rng([seed, n, len(merges)]))

    labels = merge_nearest(start, k, merge)
    distances, alive, expected = start.copy(), list(range(n)), np.arange(n)
    for step, merged in enumerate(merges):
        u, v = min(((i, j) for i in alive for j in alive if i < j), key=lambda p: (distances[p], p))
        assert merged == (u, v)
        alive.remove(v)
        expected[expected == v] = u
        distances[u] = distances[:, u] = draw(np.random.default_rng([seed, n, step + 1]))
    assert len(alive) == k
    np.testing.assert_array_equal(labels, np.searchsorted(alive, expected))


def test_distances() -> None:
    points = 1e3 + np.random.default_rng(0).standard_normal((40, 4))
    points[20:] = np.nextafter(points[:20], np.inf)  # as near as two different points can be
    distances = squareform(Points(points @ points.T).distances)
    np.testing.assert_allclose(distances**2, cdist(points, points) ** 2, atol=1e-7)
    np.testing.assert_array_equal(distances[np.arange(20), np.arange(20, 40)], 0.0)
