"""The benchmark of merging: pairs are found, rows are measured once, and the page shows them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks import merging
from testing.models import chain_conv, run


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two pairs of small networks, and a few samples."""
    names = ["net_w1_c0-4", "net_w1_s1_c5-9", "net_w1", "net_w1_s1"]
    for seed, name in enumerate(names):
        onnx.save(chain_conv(seed), tmp_path / f"{name}_cifar10_bn.onnx")
    random = np.random.default_rng(0)
    samples = random.standard_normal((64, 3, 8, 8)).astype(np.float32), random.integers(0, 5, 64)
    for load in ("load_test", "load_train_first5k"):
        monkeypatch.setattr(merging.cifar10, load, lambda _: samples)
    return tmp_path


def test_pairs_are_found(place: Path) -> None:
    found = {pair.name: ([path.name for path in pair.paths], pair.heads) for pair in merging.find_pairs(place)}
    assert found["net_w1, 5+5"] == (["net_w1_c0-4_cifar10_bn.onnx", "net_w1_s1_c5-9_cifar10_bn.onnx"], "join")
    assert found["net_w1, same classes"] == (["net_w1_cifar10_bn.onnx", "net_w1_s1_cifar10_bn.onnx"], "average")


def test_rows_are_measured_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["merging", "--data", str(place), "--models", str(place), "--json", str(place / "rows.json")]
    arguments += ["--page", str(place / "page.md"), "--row", "weight matching*R", "--widths", "1", "--images", "32"]
    monkeypatch.setattr("sys.argv", arguments)
    assert merging.main() == 0
    first = json.loads((place / "rows.json").read_text())
    assert [r["row"] for r in first] == [merging.ENSEMBLE, "weight matching, Fold-AR", "weight matching, REPAIR"] * 2
    assert merging.main() == 0
    assert json.loads((place / "rows.json").read_text()) == first
    assert "| weight matching, Fold-AR |" in (place / "page.md").read_text()
    assert "32 test images" in (place / "page.md").read_text()


def test_inputs_are_generated_once_and_counted_apart(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["merging", "--data", str(place), "--models", str(place), "--json", str(place / "rows.json")]
    chosen = ["--row", "*least squares*", "--pair", "*5+5", "--widths", "1"]
    monkeypatch.setattr("sys.argv", [*arguments, "--page", str(place / "page.md"), *chosen])
    assert merging.main() == 0
    rows = [r["row"] for r in json.loads((place / "rows.json").read_text())]
    assert rows[:2] == [merging.ENSEMBLE, merging.INPUTS]
    assert rows.count(merging.INPUTS) == 1
    assert merging.main() == 0
    assert [r["row"] for r in json.loads((place / "rows.json").read_text())] == rows


def test_three_networks_of_the_same_classes_are_a_set_of_their_own(place: Path) -> None:
    onnx.save(chain_conv(4), place / "net_w1_s2_cifar10_bn.onnx")
    found = {pair.name: len(pair.paths) for pair in merging.find_pairs(place)}
    assert found == {"net_w1, 5+5": 2, "net_w1, same classes": 2, "net_w1, same classes, three networks": 3}


def test_curves_lead_from_one_network_to_the_other(place: Path) -> None:
    pair = next(pair for pair in merging.find_pairs(place) if pair.heads == "average")
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32)}
    for matched in (False, True):
        for mix, path in zip((0.0, 1.0), pair.paths, strict=True):
            mixed = run(merging.interpolated(pair, mix, matched=matched), feeds)[0]
            assert np.allclose(mixed, run(onnx.load(path), feeds)[0], atol=1e-5)
