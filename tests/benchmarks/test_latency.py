"""The page of the latency benchmark: what it says of rows, and which goals it counts as met."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from benchmarks.latency import rows
from benchmarks.latency.networks import NETWORKS, Network
from benchmarks.latency.page import gain_of, render
from testing import models


def _row(choice: str, asked: float, macs: float, ratio: float, **more: Any) -> dict[str, Any]:
    found = {"choice": choice, "asked": asked, "removed": asked, "macs_ratio": macs, "ratio": ratio, "spread": 0.01}
    return {**found, **more}


def _network(name: str, ratio: float, reached: float, accuracy: float | None = None) -> dict[str, Any]:
    known = {} if accuracy is None else {"accuracy": accuracy}
    dense = {"choice": "dense", "asked": 0.0, "ms": 3.25, "spread": 0.02, **known}
    folds = [
        _row("defaults", 0.5, 0.6, ratio, **known),
        _row("weights alone", 0.5, 0.8, 0.9, **({"accuracy": accuracy + 0.002} if accuracy else {})),
    ]
    limited = {"asked": "0.7x", "reached": reached, "spread": 0.01, "seconds": 21.0, "removed": 0.4}
    return {
        "name": name, "file": "f", "trained": True, "rows": [dense, *folds], "limited": limited, "images": 100,
    }  # fmt: skip


def test_gain_is_latency_removed_over_macs_removed() -> None:
    assert gain_of(_row("defaults", 0.5, 0.6, 0.64)) == pytest.approx(0.9)
    assert gain_of(_row("defaults", 0.5, 1.0, 0.9)) is None
    assert gain_of(_row("defaults", 0.5, None, 0.9)) is None  # type: ignore[arg-type]


def test_goals_are_counted() -> None:
    networks = [_network("ResNet18", 0.62, 0.71, 0.9), _network("VGG11", 1.1, 0.78)]
    page = render(networks, "python -m benchmarks.latency")
    for words in (
        "at least 80% at defaults: 1 of 2, not VGG11 50% (-25%)",
        "slower than the dense network: 1 of 2, not VGG11 50%",
        "at most 0.70 of dense: 1 of 2, not VGG11 (1.10)",
        "`--max-latency` is met within 5%: 1 of 2, not VGG11",
        "ResNet18 at 50%: defaults lose +0.20 points",
        "| 50.0% | defaults | 0.60 | 0.62 | 1.0% | 95% | 90.00% |",
        "| ResNet18 | 0.7x | 0.71 | 1.0% | 40.0% | 21 s |",
    ):
        assert words in page, words


def test_a_limit_that_was_not_reached_is_told() -> None:
    network = _network("Small", 0.6, 0.7)
    network["limited"] = {"asked": "0.7x", "error": "not measurable on this machine now"}
    page = render([network], "")
    assert "| Small | 0.7x | not measurable on this machine now |" in page
    assert "met within 5%: 0 of 1, not Small" in page


def test_a_network_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a small network in place of a trained one; times are real, so only what follows from them is compared."""
    onnx.save(models.ALL_MODELS["chain_conv"](0), tmp_path / "small.onnx")
    shape = tuple(
        d.dim_value or 8 for d in onnx.load(tmp_path / "small.onnx").graph.input[0].type.tensor_type.shape.dim
    )
    images = np.random.default_rng(0).standard_normal(shape, np.float32)
    network = Network("Small", ("small",), NETWORKS[-1].build, lambda _: (images, np.zeros(len(images), np.int64)))
    monkeypatch.setattr(rows, "SPARSITIES", (0.5,))
    options = {"inputs": "noise", "samples": 8, "cache": "none"}
    found = rows.measure_network(network, [tmp_path], tmp_path, tmp_path, options, lambda _: None)
    assert [row["choice"] for row in found["rows"]] == ["dense", "defaults", "weights alone"]
    assert all(row["ms"] > 0.0 and 0.0 <= row["accuracy"] <= 1.0 for row in found["rows"])
    assert found["trained"]
    assert render([found], "")
