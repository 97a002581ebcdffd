"""The rotation into as many dimensions as there are points."""

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from onnxfold.cluster.gram import rotate


@pytest.mark.parametrize(("n", "d"), [(2, 1), (5, 3), (5, 5), (12, 400), (40, 7)])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_distances_are_preserved(n: int, d: int, offset: float) -> None:
    points = np.random.default_rng(n * d).standard_normal((n, d)) + offset
    rotated = rotate([points])
    assert rotated.shape[0] == n
    assert rotated.shape[1] <= (min(n, d) if offset == 0.0 else n)
    np.testing.assert_allclose(pdist(rotated), pdist(points), rtol=1e-6, atol=1e-6)


def test_blocks_are_columns_of_one_matrix() -> None:
    points = np.random.default_rng(0).standard_normal((9, 30)).astype(np.float32)
    np.testing.assert_allclose(
        pdist(rotate([points[:, :4], points[:, 4:5], points[:, 5:]])), pdist(rotate([points])), rtol=1e-5
    )


def test_weighted_means_are_preserved() -> None:
    """Distances of points to means of points are those of the rotated ones: k-means cannot tell the difference."""
    rng = np.random.default_rng(1)
    points, weights = rng.standard_normal((8, 50)), rng.uniform(1, 3, 8)
    rotated = rotate([points])
    for some in ([0, 3], [1, 2, 5, 7]):
        w = weights[some] / weights[some].sum()
        distance, expected = (np.linalg.norm(x - w @ x[some], axis=1) for x in (rotated, points))
        np.testing.assert_allclose(distance, expected, rtol=1e-6)


def test_degenerate_points() -> None:
    assert rotate([np.ones((1, 5))]).shape == (1, 1)
    np.testing.assert_array_equal(rotate([np.ones((4, 5))]), np.zeros((4, 1)))
    with pytest.raises(ValueError, match="at least one feature block"):
        rotate([])
