"""The benchmark of the estimated agreement: its regression, its page, and the rows of the package's numbers."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from benchmarks.prediction.cells import Row, Rows, subjects
from benchmarks.prediction.page import render
from benchmarks.prediction.regression import fit, left_out, origin, rounded
from onnxfold.fidelity.estimate import GENERATED, REGRESSIONS, features
from onnxfold.report import Signs

MEASURED = Path(__file__).parents[2] / "benchmarks" / "prediction.json"


def _row(training: str, signs: Signs, agreement: float) -> Row:
    return {
        "network": f"{training}_bn", "training": training, "asked": "auto", "sparsity": 0.5, "removed": 0.5,
        "agreement": agreement, "images": 10**9, "dense": 0.9, "accuracy": 0.8, "signs": asdict(signs), "code": "abc",
    }  # fmt: skip


@pytest.fixture
def rows() -> list[Row]:
    """Rows that follow the package's own regression exactly."""
    random, found = np.random.default_rng(0), []
    for i in range(240):
        fitted, held_out = random.uniform(0.3, 0.99, 2)
        signs = Signs("deep-inversion", fitted, 512, held_out, 256, float(random.uniform(0.05, 0.8)), 0.1)
        found.append(_row(f"net{i % 8}", signs, REGRESSIONS[GENERATED].at(features(signs))[0]))
    return found


def test_the_regression_finds_the_coefficients_that_made_the_rows(rows: list[Row]) -> None:
    found = fit(rows)
    assert found.coefficients == pytest.approx(REGRESSIONS[GENERATED].coefficients, abs=0.05)
    assert found.spread == pytest.approx((0, 0), abs=0.05)


def test_rows_of_a_training_have_no_part_in_its_own_estimate(rows: list[Row]) -> None:
    changed = [row | {"agreement": 0.01} if row["training"] == "net3" else row for row in rows]
    before = [(estimate, interval) for row, estimate, interval in left_out(rows) if row["training"] == "net3"]
    after = [(estimate, interval) for row, estimate, interval in left_out(changed) if row["training"] == "net3"]
    assert before == after
    assert left_out(changed)[0][1] != left_out(rows)[0][1]  # of net0, in which net3 has a part


def test_both_exports_of_a_network_are_one_training(tmp_path: Path) -> None:
    for name in ("a_w1_fashion_bn", "a_w1_fashion_fused", "b_imagenet_bn"):
        (tmp_path / f"{name}.onnx").touch()
    found = {s.name: s.training for s in subjects(tmp_path, [tmp_path])}
    assert found == {
        "lenet5": "lenet5", "lenet5_2x": "lenet5_2x",
        "a_w1_fashion_bn": "a_w1_fashion", "a_w1_fashion_fused": "a_w1_fashion", "b_imagenet_bn": "b_imagenet",
    }  # fmt: skip


def test_cells_are_kept(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "cells.jsonl")
    assert not rows.has("net_bn", "auto", 0.5)
    rows.add(_row("net", Signs("data", 0.9, 128, 0.8, 256, 0.1), 0.9))
    again = Rows(tmp_path / "cells.jsonl")
    assert again.rows == rows.rows
    assert again.has("net_bn", "auto", 0.5)
    assert not again.has("net_bn", "data", 0.5)


def test_the_page_has_every_cell(rows: list[Row]) -> None:
    page = render(rows[:40])
    assert page.count("_bn | default |") == 40
    assert "in the interval" in page


def test_the_package_has_what_was_measured() -> None:
    """On at least 8 networks and 40 cells; the 80 % interval holds 70 to 90 %, and 8 points are missed at most."""
    rows = json.loads(MEASURED.read_text(encoding="utf-8"))
    for name, ours in REGRESSIONS.items():
        part = [row for row in rows if origin(row) == name]
        assert rounded(fit(part)) == ours
        judged = left_out(part)
        inside = np.mean([low <= row["agreement"] <= high for row, _, (low, high) in judged])
        assert 0.7 <= inside <= 0.9
        assert np.mean([abs(estimate - row["agreement"]) for row, estimate, _ in judged]) <= 0.08
        if name == GENERATED:
            assert len(part) >= 40
            assert len({row["training"] for row in part}) >= 8
