"""The regression of true agreements on signs, and how well it holds for networks that had no part in it."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from benchmarks.prediction.cells import Row
from onnxfold.fidelity.estimate import Regression, doubt_of, estimate, logit
from onnxfold.report.closeness import Signs

#: What coefficients are drawn towards zero by, so that few networks cannot move them far; not the constant.
RIDGE = 0.1
#: Bounds of the interval, where every training weighs the same: cells of one are alike, so many say little more.
QUANTILES = (0.1, 0.9)
_STEPS = 20

Floats = npt.NDArray[np.float64]
#: A row, its estimate, and the interval of that.
Judged = tuple[Row, float, tuple[float, float]]
_Made = TypeVar("_Made")


def is_on_samples(row: Row) -> bool:
    """Return whether a row was folded on samples, some of which were held out to measure its agreement."""
    return row["asked"] in ("data", "crops")


def has_estimate(row: Row) -> bool:
    """Return whether nothing speaks against the estimate of a row."""
    return not doubt_of(_signs(row))


def fit(rows: Sequence[Row]) -> Regression:
    """Return the regression of rows, and its spread by leaving out one training after the other.

    Parameters
    ----------
    rows : sequence of Row
        Rows of folds on generated inputs. All make the coefficients; those that have an estimate make the spread.
    """
    missed, weights = [], []
    for coefficients, left in _without_each(rows, _coefficients):
        table = Regression(_pair(coefficients), (0.0, 0.0))
        stated = [(row, _signs(row)) for row in left if has_estimate(row)]
        for row, signs in stated:
            missed.append((logit(row["agreement"], row["images"]) - table.middle(signs)) / table.noise(signs))
            weights.append(1.0 / len(stated))
    low, high = _weighted_quantiles(missed, weights)
    return Regression(_pair(_coefficients(rows)), (low, high))


def _pair(coefficients: Floats) -> tuple[float, float]:
    constant, slope = coefficients.tolist()
    return constant, slope


def _weighted_quantiles(values: list[float], weights: list[float]) -> tuple[float, float]:
    order = np.argsort(values)
    below = np.cumsum(np.asarray(weights)[order]) / sum(weights)
    low, high = (float(np.interp(q, below, np.asarray(values)[order])) for q in QUANTILES)
    return low, high


def rounded(found: Regression) -> Regression:
    """Return a regression with numbers of two digits behind the point, as the package has it."""
    low, high = found.spread
    constant, slope = found.coefficients
    return Regression((round(constant, 2), round(slope, 2)), (round(low, 2), round(high, 2)))


def judged(rows: Sequence[Row]) -> list[Judged]:
    """Return every row that has an estimate, with its interval: from samples, or from rows of other trainings alone."""
    of_samples = [row for row in rows if is_on_samples(row) and has_estimate(row)]
    stated = [(row, estimate("", _signs(row))) for row in of_samples]
    measured = [(row, made.agreement, made.interval) for row, made in stated]
    generated = [row for row in rows if not is_on_samples(row)]
    without = _without_each(generated, fit)
    return measured + [(row, *table.at(_signs(row))) for table, left in without for row in left if has_estimate(row)]


def _without_each(rows: Sequence[Row], make: Callable[[Sequence[Row]], _Made]) -> list[tuple[_Made, list[Row]]]:
    trainings = dict.fromkeys(row["training"] for row in rows)
    return [
        (make([r for r in rows if r["training"] != name]), [r for r in rows if r["training"] == name])
        for name in trainings
    ]


def _coefficients(rows: Sequence[Row]) -> Floats:
    """Return the fractional logistic regression, every training counting alike."""
    signs = [_signs(row) for row in rows]
    x = np.array([(1.0, logit(s.held_out_agreement, s.held_out_samples)) for s in signs])
    y = np.array([row["agreement"] for row in rows])
    names = [row["training"] for row in rows]
    weights = np.array([1.0 / names.count(name) for name in names])
    weights *= len(rows) / weights.sum()
    penalty = RIDGE * np.eye(x.shape[1])
    penalty[0, 0] = 0.0
    found = np.zeros(x.shape[1])
    for _ in range(_STEPS):  # Newton's
        p = 1.0 / (1.0 + np.exp(-x @ found))
        gradient = x.T @ (weights * (y - p)) - penalty @ found
        found = found + np.linalg.solve((x.T * (weights * p * (1.0 - p))) @ x + penalty, gradient)
    return found


def _signs(row: Row) -> Signs:
    return Signs(**row["signs"])
