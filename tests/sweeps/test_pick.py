"""The picked model, what is said where there is none, and the front."""

from __future__ import annotations

from itertools import product

import pytest

from onnxfold.errors import ConfigError, NoModelError
from onnxfold.sweeps.answers.pick import check_preference, front, pick
from onnxfold.sweeps.answers.query import parse
from tests.sweeps.rows import row, sweep_rows

ANY = parse("weights > 0")


def test_the_best_quality_wins_then_the_fastest() -> None:
    rows = [row(1, agreement=0.9), row(2, agreement=0.95, latency_ms=2.0), row(3, agreement=0.95, latency_ms=1.0)]
    assert pick(rows, ANY).key == rows[2].key
    assert pick([*rows, row(4, agreement=0.99, status="failed")], ANY).key == rows[2].key


def test_accuracy_counts_before_agreement_where_all_have_it() -> None:
    rows = [row(1, agreement=0.9, accuracy=0.8), row(2, agreement=0.95, accuracy=0.7)]
    assert pick(rows, ANY).key == rows[0].key
    assert pick([*rows, row(3, agreement=0.99)], ANY).key == row(3).key


def test_a_preference_decides_first() -> None:
    rows = [row(1, weights=10, agreement=0.5), row(2, weights=20, agreement=0.9)]
    assert pick(rows, ANY, "weights").key == rows[0].key
    assert pick(rows, ANY, "sparsity").key == rows[1].key
    with pytest.raises(ConfigError, match="--prefer 'beauty' is not one of: weights"):
        check_preference("beauty")


def test_the_closest_one_is_named_where_none_fits() -> None:
    rows = [row(1, agreement=0.90, method="far"), row(2, agreement=0.94, method="near")]
    with pytest.raises(NoModelError) as error:
        pick(rows, parse("latency < 0.5x and agreement > 0.95"))
    assert "none of 2 folds meets it" in str(error.value)
    assert "by near, seed 0, misses 'agreement > 0.95' (it is 0.94)" in str(error.value)
    with pytest.raises(NoModelError, match=r"misses 'ram < 1' \(it is unknown\), 'method == x' \(it is 'fold-ls'\)"):
        pick([row()], parse("ram < 1 and method == x"))
    with pytest.raises(NoModelError, match="meets every comparison, but not the expression"):
        pick([row()], parse("not weights > 0"))
    with pytest.raises(NoModelError, match="no finished fold"):
        pick([row(status="failed")], ANY)


@pytest.mark.parametrize(("cost", "quality"), list(product(("weights", "latency"), ("agreement", "relative_error"))))
def test_nothing_beats_the_front_and_all_else_is_beaten(cost: str, quality: str) -> None:
    rows = [r for r in sweep_rows() if r.model == "net.onnx" and r.status == "done"]
    better = -1 if quality == "agreement" else 1
    points = {
        r.key: (getattr(r, {"latency": "latency_ms"}.get(cost, cost)), better * getattr(r, quality)) for r in rows
    }
    best = {r.key for r in front([*rows, row(99, agreement=None, relative_error=None)], cost, quality)}
    for key, (x, y) in points.items():
        beaten = any((a <= x and b <= y) and (a, b) != (x, y) for a, b in points.values())
        assert (key in best) != beaten
