"""Second moments of vectors and of channels, over batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from onnxfold.cluster.gram import Points, centred_gram
from onnxfold.passes.repair.compensate import correction
from onnxfold.statistics import samples as statistics_samples
from onnxfold.statistics.moments import ChannelCorrelations, ChannelMoments, CrossMoments, remove_mean
from onnxfold.statistics.samples import joined

Array = NDArray[Any]

#: How samples come: how many batches, and whether one of zeros comes first, whose mean is that of no other.
BATCHES: dict[str, Callable[[Array], list[Array]]] = {
    "one": lambda values: [values],
    "five": lambda values: np.array_split(values, 5),
    "zeros first": lambda values: [np.zeros_like(values[:10]), *np.array_split(values, 5)],
    "one empty": lambda values: [values[:0], values],
    "single samples": lambda values: [*np.split(values[:50], 50), values[50:]],
}


def samples(mean: float) -> tuple[Array, Array]:
    """Return x and y of variance one, in float32."""
    random = np.random.default_rng(0)
    y = random.standard_normal((20_000, 5)) @ np.linalg.qr(random.standard_normal((5, 5)))[0]
    x = np.concatenate([0.8 * y[:, :3] + 0.6 * random.standard_normal((20_000, 3)), y], axis=1)
    return (x + mean).astype(np.float32), (y + mean).astype(np.float32)


def exact(x: Array, y: Array) -> Array:
    xc, yc = (v.astype(np.float64) - v.astype(np.float64).mean(axis=0) for v in (x, y))
    found: Array = xc.T @ yc / len(x)
    return found


@pytest.mark.parametrize("mean", [0.0, 1e4])
@pytest.mark.parametrize("batches", BATCHES)
def test_means_far_above_deviations_cost_no_digits(mean: float, batches: str) -> None:
    """At mean 1e4 and variance 1, E[x y] - E[x] E[y] in float32 has no correct digit left."""
    parts = [BATCHES[batches](v) for v in samples(mean)]
    x, y = (np.concatenate(part) for part in parts)
    moments = CrossMoments(8, 5)
    for a, b in zip(*parts, strict=True):
        moments.add(a, b)
    scale = max(1.0, float(np.abs(exact(x, y)).max()))
    np.testing.assert_allclose(moments.covariance, exact(x, y), rtol=0, atol=1e-5 * scale)
    np.testing.assert_allclose(moments.gram, exact(y, y), rtol=0, atol=1e-5 * scale)
    np.testing.assert_allclose(moments.mean_y, y.astype(np.float64).mean(axis=0), rtol=1e-10, atol=1e-7)
    channels = ChannelMoments(parts[1], 1)
    np.testing.assert_allclose(channels.mean, moments.mean_y, rtol=1e-10, atol=1e-7)
    np.testing.assert_allclose(channels.variance, np.diag(exact(y, y)), rtol=0, atol=1e-5 * scale)
    correlations = ChannelCorrelations(5)
    for a, b in zip(*parts, strict=True):
        correlations.add(a[:, :5], b)
    expected = np.diag(np.corrcoef(x[:, :5].astype(np.float64), y.astype(np.float64), rowvar=False)[:5, 5:])
    np.testing.assert_allclose(correlations.correlations, expected, rtol=0, atol=1e-5)


def test_a_constant_correlates_with_everything() -> None:
    """A channel that never varies is known for sure."""
    moments = ChannelCorrelations(2)
    moments.add(np.ones((4, 3, 2), np.float32), np.zeros((4, 3, 2), np.float32))
    np.testing.assert_array_equal(moments.correlations, 1.0)


def test_nothing_seen_is_zero() -> None:
    moments = CrossMoments(3, 2)
    assert not moments.covariance.any()
    assert moments.covariance.shape == (3, 2)
    assert moments.gram.shape == (2, 2)


@pytest.mark.parametrize(("sizes", "wanted"), [([3], [3]), ([1] * 5, [4, 1]), ([6, 1, 2, 9], [6, 3, 9]), ([], [])])
def test_small_batches_are_joined(sizes: list[int], wanted: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics_samples, "CHUNK", 4)
    random = np.random.default_rng(0)
    batches = [(random.random((n, 3), np.float32), random.random((n, 2), np.float32)) for n in sizes]
    made = list(joined(batches))
    assert [len(x) for x, _ in made] == wanted
    for place in range(2 * bool(sizes)):
        np.testing.assert_array_equal(*(np.concatenate([pair[place] for pair in pairs]) for pairs in (made, batches)))


def test_channels_of_half_precision_do_not_overflow() -> None:
    values = np.array([[-400.0, 1.0], [400.0, 1.0]], np.float16)  # 400 ** 2 is more than float16 holds
    moments = ChannelMoments([values], 1)
    np.testing.assert_allclose(moments.variance, [160_000.0, 0.0])
    np.testing.assert_allclose(moments.mean, [0.0, 1.0])


def test_centred_values_have_no_mean() -> None:
    values = np.full((100_000, 2), 1234.567, np.float32)
    rest, centre = remove_mean(values)
    assert not rest.any()
    np.testing.assert_allclose(centre.mean, values[0], rtol=1e-12)


def test_what_points_have_in_common_costs_clusterings_no_digits() -> None:
    """At mean 1e4 the products of single precision vectors do not tell them apart."""
    points = np.random.default_rng(0).standard_normal((6, 40))
    far = (points + 1e4).astype(np.float32)
    distances = [Points(centred_gram([p])).distances for p in (far.astype(np.float64) - 1e4, far)]
    np.testing.assert_allclose(distances[1], distances[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("ridge", [1e-8, 1e-4, 1e-2])
def test_a_correction_is_never_larger_than_what_it_corrects(ridge: float) -> None:
    """Nearly equal channels make the moments singular; residuals that are rounding stay rounding."""
    random = np.random.default_rng(1)
    y = random.standard_normal((4_000, 1)) + 1e-6 * random.standard_normal((4_000, 6))
    y = y.astype(np.float32)
    residual = (1e-7 * random.standard_normal((4_000, 3))).astype(np.float32)
    moments = CrossMoments(3, 6)
    moments.add(residual, y)
    change = (y - y.mean(axis=0)) @ correction(moments, ridge).T
    assert np.linalg.norm(change) <= np.linalg.norm(residual)
