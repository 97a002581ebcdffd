"""The benchmark of the estimated agreement: its regression, its page, and the rows of the package's numbers."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from benchmarks.prediction.cells import Row, Rows, subjects
from benchmarks.prediction.page import render
from benchmarks.prediction.regression import fit, has_estimate, is_on_samples, judged, rounded
from onnxfold.fidelity.estimate import REGRESSION
from onnxfold.report.closeness import Signs

MEASURED = Path(__file__).parents[2] / "benchmarks" / "prediction.json"


def _row(training: str, signs: Signs, agreement: float, asked: str = "auto") -> Row:
    return {
        "network": f"{training}_bn", "training": training, "asked": asked, "sparsity": 0.5,
        "agreement": agreement, "images": 10**9, "dense": 0.9, "accuracy": 0.8, "signs": asdict(signs), "doubt": "",
        "code": "abc",
    }  # fmt: skip


@pytest.fixture
def rows() -> list[Row]:
    """Rows that follow the package's own regression exactly."""
    random, rows = np.random.default_rng(0), []
    for i in range(240):
        signs = Signs("deep-inversion", random.uniform(0.3, 0.99), 256, float(random.uniform(0.05, 0.8)), 0.1, 0.5)
        rows.append(_row(f"net{i % 8}", signs, REGRESSION.at(signs)[0]))
    return rows


def test_the_regression_finds_the_coefficients_that_made_the_rows(rows: list[Row]) -> None:
    made = fit(rows)
    assert made.coefficients == pytest.approx(REGRESSION.coefficients, abs=0.05)
    assert made.spread == pytest.approx((0, 0), abs=0.05)


def test_rows_of_a_training_have_no_part_in_its_own_estimate(rows: list[Row]) -> None:
    changed = [row | {"agreement": 0.01} if row["training"] == "net3" else row for row in rows]
    before = [(estimate, interval) for row, estimate, interval in judged(rows) if row["training"] == "net3"]
    after = [(estimate, interval) for row, estimate, interval in judged(changed) if row["training"] == "net3"]
    assert before == after
    assert judged(changed)[0][1] != judged(rows)[0][1]  # of net0, in which net3 has a part


def test_rows_without_an_estimate_are_not_judged(rows: list[Row]) -> None:
    rows.append(_row("net0", Signs("data", 0.9, 50, 0.1, 0.1, 0.2), 0.5, "crops"))
    rows.append(_row("net0", Signs("data", 0.9, 50, 0.1, 0.1, 1.0), 0.9, "data"))
    assert not has_estimate(rows[-2])
    known = {id(row) for row, _, _ in judged(rows)}
    assert id(rows[-2]) not in known
    assert id(rows[-1]) in known


def test_both_exports_of_a_network_are_one_training(tmp_path: Path) -> None:
    for name in ("a_w1_fashion_bn", "a_w1_fashion_fused", "efficientnet_lite1_bn", "other"):
        (tmp_path / f"{name}.onnx").touch()
    found = {s.name: s.training for s in subjects(tmp_path, [tmp_path])}
    assert found == {
        "lenet5": "lenet5", "lenet5_2x": "lenet5_2x",
        "a_w1_fashion_bn": "a_w1_fashion", "a_w1_fashion_fused": "a_w1_fashion",
        "efficientnet_lite1_bn": "efficientnet_lite1",
    }  # fmt: skip


def test_cells_are_kept(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "cells.jsonl")
    assert not rows.has("net_bn", "auto")
    rows.add([_row("net", Signs("data", 0.9, 50, 0.1), 0.9)])
    again = Rows(tmp_path / "cells.jsonl")
    assert again.rows == rows.rows
    assert again.has("net_bn", "auto")
    assert not again.has("net_bn", "data")


def test_the_page_has_every_cell(rows: list[Row]) -> None:
    page = render(rows[:40])
    assert page.count("_bn | default |") == 40
    assert "in the interval" in page


def test_the_package_has_what_was_measured() -> None:
    """On at least 8 trainings: 75 to 92 % of the intervals hold, of generated inputs in every network with many cells.

    And 5 % of all estimates are 10 points too high at most.
    """
    rows = json.loads(MEASURED.read_text(encoding="utf-8"))
    generated = [row for row in rows if not is_on_samples(row)]
    assert len({row["training"] for row in generated}) >= 8
    assert rounded(fit(generated)) == REGRESSION
    stated = judged(rows)
    assert len(stated) >= len(rows) / 3
    assert 0.75 <= np.mean([low <= row["agreement"] <= high for row, _, (low, high) in stated]) <= 0.92
    assert sum(estimate - row["agreement"] > 0.1 for row, estimate, _ in stated) <= 0.05 * len(rows)
    known: dict[str, list[bool]] = {}
    for row, _, (low, high) in stated:
        if not is_on_samples(row):
            known.setdefault(row["network"], []).append(low <= row["agreement"] <= high)
    assert min(np.mean(holds) for holds in known.values() if len(holds) >= 4) > 0.6
