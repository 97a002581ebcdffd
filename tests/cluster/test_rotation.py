"""Principal axes: nothing of that width loses less, equal channels cost nothing, and all axes together lose nothing."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from onnxfold.cluster.clusterings.rotation import rotations

Matrix = NDArray[np.float64]
N = 7


def _moment(seed: int, n: int = N) -> Matrix:
    factor = np.random.default_rng(seed).standard_normal((n, n)) * np.geomspace(1.0, 0.1, n)
    return np.asarray(factor @ factor.T)


def _loss(encode: Matrix, decode: Matrix, moment: Matrix, metric: Matrix) -> float:
    left = np.eye(len(moment)) - decode @ encode
    return float(np.trace(metric @ left @ moment @ left.T) / np.trace(metric @ moment))


@pytest.mark.parametrize("metric", [None, _moment(5) + 0.1 * np.eye(N)])
def test_no_axes_lose_less(metric: Matrix | None) -> None:
    moment, random = _moment(0), np.random.default_rng(1)
    cost = np.eye(N) if metric is None else metric
    found = rotations([(moment, np.eye(N))], metric)
    for k in range(1, N + 1):
        partition = found.partition(k)
        assert (partition.clusters, partition.size) == (k, N)
        np.testing.assert_allclose(partition.encode @ partition.decode, np.eye(k), atol=1e-10)
        if metric is None:
            np.testing.assert_allclose(partition.encode, partition.decode.T)
        loss = _loss(partition.encode, partition.decode, moment, cost)
        assert loss == pytest.approx(found.errors[k], abs=1e-10)
        for _ in range(20):
            rows = random.standard_normal((k, N))
            best = moment @ rows.T @ np.linalg.inv(rows @ moment @ rows.T)
            assert _loss(rows, best, moment, cost) >= loss - 1e-10
    assert found.errors[N] == 0.0
    assert found.errors[0] == np.inf
    assert np.all(np.diff(found.errors[1:]) <= 0.0)


def test_equal_and_dead_channels_cost_nothing() -> None:
    """Of a pair of equal channels, one axis is left: half of each, times the square root of two."""
    values = np.random.default_rng(0).standard_normal((100, 5))
    x = values[:, [0, 1, 2, 2, 3, 4]] * np.array([1, 1, 1, 1, 1, 0])
    found = rotations([(x.T @ x, np.eye(6))])
    assert found.errors[4] == 0.0 < found.errors[3]
    partition = found.partition(4)
    np.testing.assert_allclose(x @ partition.encode.T @ partition.decode.T, x, atol=1e-10)
    pair = partition.decode[2]
    np.testing.assert_allclose(pair, partition.decode[3], atol=1e-10)
    assert pair @ pair == pytest.approx(0.5)


def test_errors_of_several_consumers_add_up() -> None:
    moments = [(_moment(0), _moment(1)), (_moment(2), _moment(3))]
    found = rotations(moments)
    for k in (2, 5):
        partition = found.partition(k)
        losses = [_loss(partition.encode, partition.decode, moment, gram) for moment, gram in moments]
        assert found.errors[k] >= sum(losses) - 1e-10  # made monotone
    assert rotations([(np.zeros((3, 3)), np.eye(3))]).errors[1:].tolist() == [0.0] * 3
