"""Second moments of pairs of vectors."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfold.passes.repair.least_squares import correction
from onnxfold.statistics.cross_moments import CrossMoments


@pytest.mark.parametrize("mean", [0.0, 1e4])
@pytest.mark.parametrize("batches", [1, 5])
def test_means_far_above_deviations_cost_no_digits(mean: float, batches: int) -> None:
    """At mean 1e4 and variance 1, E[x y] - E[x] E[y] in float32 has no correct digit left."""
    random = np.random.default_rng(0)
    y = random.standard_normal((20_000, 5)) @ random.standard_normal((5, 5))
    x = np.concatenate([y[:, :3] + 0.1 * random.standard_normal((20_000, 3)), y], axis=1)
    x32, y32 = ((v + mean).astype(np.float32) for v in (x, y))
    moments = CrossMoments(8, 5)
    for a, b in zip(np.array_split(x32, batches), np.array_split(y32, batches), strict=True):
        moments.add(a, b)
    xc, yc = (v.astype(np.float64) - v.astype(np.float64).mean(axis=0) for v in (x32, y32))
    np.testing.assert_allclose(moments.cross, xc.T @ yc / len(x), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(moments.gram, yc.T @ yc / len(x), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(moments.mean_y, y32.astype(np.float64).mean(axis=0), rtol=1e-6, atol=1e-6)


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
