"""k-means by inner products: the clusters of k-means on the points."""

import numpy as np
import pytest
from numpy.typing import NDArray

from onnxfold.channels import find_groups
from onnxfold.cluster import task as task_room
from onnxfold.cluster.clusterings.kmeans import kmeans
from onnxfold.cluster.duplicates import find_duplicates
from onnxfold.cluster.gram import Products, kmeans_by_products
from onnxfold.cluster.partition import renumber
from onnxfold.cluster.partitioners import PARTITIONERS
from onnxfold.cluster.task import ComparedGraph, Task
from onnxfold.graph.files.load import load
from testing.models import ALL_MODELS
from testing.widening.widen import widen

Points = NDArray[np.float64]


@pytest.mark.parametrize("k", [2, 11, 25, 39])
@pytest.mark.parametrize("seed", range(3))
def test_clusters_are_those_of_the_points(seed: int, k: int) -> None:
    random = np.random.default_rng(seed)
    points = random.standard_normal((40, 6)) + 3.0 * random.standard_normal((8, 6))[random.integers(0, 8, 40)]
    weights = random.integers(1, 4, 40).astype(np.float64)
    expected = kmeans(points, weights, k, seed=0)
    found = kmeans_by_products(Products(points @ points.T), weights, k, seed=0)
    np.testing.assert_array_equal(renumber(found)[0], renumber(expected)[0])


@pytest.mark.parametrize("k", [1, 3, 5, 7])
def test_no_cluster_is_empty_where_points_coincide(k: int) -> None:
    points = np.array([[0.0], [0.0], [0.0], [0.0], [0.0], [1.0], [1.0]])
    labels = kmeans_by_products(Products(points @ points.T), np.ones(7), k, seed=0)
    assert sorted(set(labels.tolist())) == list(range(k))


def test_wide_groups_are_clustered_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Duplicates and weights of clusters included; and what a partition loses is the same."""
    model, _ = widen(ALL_MODELS["residual"](0), seed=0)
    view = load(model)
    groups = find_groups(view).groups
    for group, classes in zip(groups, find_duplicates(view, groups), strict=True):
        for k in (group.size // 4, group.size // 2, group.size * 3 // 4):
            found = []
            for wide in (4096, 0):
                monkeypatch.setattr(task_room, "WIDE", wide)
                task = Task(ComparedGraph(view, view, seed=0), group, classes)
                partition = PARTITIONERS["kmeans"].candidates(task).partition(k)
                found.append((partition.labels, task.scatter(partition)))
            np.testing.assert_array_equal(found[0][0], found[1][0])
            assert found[1][1] == pytest.approx(found[0][1], rel=1e-6, abs=1e-9)
