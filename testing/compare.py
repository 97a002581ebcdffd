"""Distances of outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def relative_difference(reference: list[NDArray[Any]], outputs: list[NDArray[Any]]) -> float:
    """Return the largest difference of any output over the largest entry of that output."""
    worst = 0.0
    for a, b in zip(reference, outputs, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        x, y = a.astype(np.float64), b.astype(np.float64)
        worst = max(worst, float(np.abs(x - y).max() / max(float(np.abs(x).max()), 1e-12)))
    return worst
