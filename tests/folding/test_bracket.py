"""The bracket around the sparsity at which a margin runs out."""

import math
from collections.abc import Callable

import pytest

from onnxfold.folding.search.fidelity_search import Bracket

RESOLUTION = 0.016


def search(margin: Callable[[float], float | None], allowance: float = 0.2) -> tuple[Bracket, int]:
    """Return where the search ends, and how many points it took."""
    bracket, points = Bracket(0.0, 0.98, allowance), 0
    while bracket.width > RESOLUTION:
        point = bracket.point
        assert bracket.low < point < bracket.high
        found = margin(point)
        if found is not None and found >= 0:
            bracket = bracket.kept_at(point, found)
        else:
            bracket = bracket.lost_at(point, None if found is None else -found)
        points += 1
    return bracket, points


def falling(root: float, steepness: float) -> Callable[[float], float]:
    """Return an agreement that falls as a logistic curve, less 0.8; it crosses zero at the root."""
    shift = math.log(0.2 / 0.8)
    return lambda x: 1 / (1 + math.exp(steepness * (x - root) + shift)) - 0.8


@pytest.mark.parametrize("steepness", [4.0, 12.0, 40.0, 200.0])
def test_the_root_is_bracketed(steepness: float) -> None:
    for root in (0.01, 0.05, 0.17, 0.4, 0.7, 0.95):
        bracket, points = search(falling(root, steepness))
        assert bracket.low <= root <= bracket.high
        assert points <= 11


def test_a_curve_that_bends_takes_fewer_points_than_a_bisection() -> None:
    """A bisection takes 6 for every one of these."""
    points = [search(falling(root, 15.0))[1] for root in (0.1, 0.15, 0.2, 0.3, 0.5)]
    assert sum(points) / len(points) < 6


@pytest.mark.parametrize("root", [0.03, 0.5, 0.9])
def test_a_step_is_found_nearly_as_fast_as_by_bisection(root: float) -> None:
    bracket, points = search(lambda x: 0.2 if x <= root else -0.7)
    assert bracket.low <= root <= bracket.high
    assert points <= 11


def test_folds_that_cannot_be_made_are_outside() -> None:
    bracket, _ = search(lambda x: 0.2 if x <= 0.3 else None)
    assert bracket.low <= 0.3 <= bracket.high


@pytest.mark.parametrize("allowance", [0.0, 0.2])
def test_no_margin_at_the_start_is_no_trouble(allowance: float) -> None:
    assert search(lambda x: -0.5 if x > 0.05 else 0.0, allowance)[0].low <= 0.05
    assert search(lambda x: 0.0, 0.0)[0].high == 0.98
