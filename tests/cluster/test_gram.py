"""Inner products of channels' features, and distances by them."""

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from onnxfold.cluster.gram import Points, centred_gram
from onnxfold.cluster.partition import ChannelPartition, axes_partition, mean_partition


@pytest.mark.parametrize(("n", "d"), [(2, 1), (5, 3), (5, 5), (12, 400), (40, 7)])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_distances_are_preserved(n: int, d: int, offset: float) -> None:
    points = np.random.default_rng(n * d).standard_normal((n, d)) + offset
    np.testing.assert_allclose(Points(centred_gram([points])).distances, pdist(points), rtol=1e-6, atol=1e-6)


def test_blocks_are_columns_of_one_matrix() -> None:
    points = np.random.default_rng(0).standard_normal((9, 30)).astype(np.float32)
    blocks = [points[:, :4], points[:, 4:5], points[:, 5:]]
    np.testing.assert_allclose(centred_gram(blocks), centred_gram([points]), rtol=1e-5, atol=1e-5)


def test_degenerate_points() -> None:
    np.testing.assert_array_equal(centred_gram([np.ones((1, 5))]), [[0.0]])
    assert not Points(centred_gram([np.ones((4, 5))])).distances.any()
    with pytest.raises(ValueError, match="at least one feature block"):
        centred_gram([])


@pytest.mark.parametrize("partition", [
    mean_partition([0, 1, 0, 2, 2, 2]),
    mean_partition([0, -1, 0, 1, 1, -1]),
    axes_partition(np.eye(6)[:2] + 0.1, np.eye(6)[:, :2]),
], ids=["means", "some dropped", "axes"])  # fmt: skip
def test_scatter_is_what_the_partition_misses(partition: ChannelPartition) -> None:
    points = np.random.default_rng(2).standard_normal((6, 9))
    points -= points.mean(axis=0)
    missed = points - partition.decode @ partition.encode @ points
    assert Points(points @ points.T).scatter(partition) == pytest.approx((missed**2).sum() / (points**2).sum())
