"""Random numbers of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from testing.random_graphs.common import Array


class Drawing:
    """Draws from one random generator, in the type of a graph.

    Parameters
    ----------
    rng : Generator
        Everything is drawn from it.
    dtype : dtype
        Of floating-point values.
    """

    def __init__(self, rng: np.random.Generator, dtype: np.dtype[Any]) -> None:
        self.rng = rng
        self.dtype = dtype

    def chance(self, probability: float) -> bool:
        """Return True with a probability."""
        return bool(self.rng.random() < probability)

    def integer(self, low: int, high: int) -> int:
        """Both ends included."""
        return int(self.rng.integers(low, high + 1))

    def choice(self, items: Sequence[Any]) -> Any:
        """Return one of the items, all equally likely."""
        return items[int(self.rng.integers(len(items)))]

    def width(self) -> int:
        """Return a number of channels."""
        return int(self.choice([2, 3, 4, 4, 5, 6, 6, 8, 8, 9, 10, 12]))

    def normal(self, *shape: int, std: float = 1.0, mean: float = 0.0) -> Array:
        """Return normal noise of a shape."""
        return self.rng.normal(mean, std, shape).astype(self.dtype)

    def uniform(self, low: float, high: float, *shape: int) -> Array:
        """Return values of a shape, equally likely between two bounds."""
        return self.rng.uniform(low, high, shape).astype(self.dtype)
