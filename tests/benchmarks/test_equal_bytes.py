"""The page of folded and quantised networks: what stands beside what, and what is timed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from benchmarks.equal_bytes.measure import size_and_accuracy, times
from benchmarks.equal_bytes.page import label, render
from benchmarks.equal_bytes.variants import TYPES, Variant
from testing.models import chain_conv, run
from testing.quick import quick_fold

IMAGES = np.random.default_rng(0).random((60, 3, 8, 8), np.float32)


def _row(runtime: str, sparsity: float, dtype: str, **values: float) -> dict[str, object]:
    said = {"network": "net", "runtime": runtime, "sparsity": sparsity, "dtype": dtype, "images": 10}
    return said | {"bytes": 1000, "accuracy": 0.5, "ms": 1.0, "ratio": 1.0, "spread": 0.0} | values


def test_every_variant_has_its_line() -> None:
    rows = [
        _row("onnx", 0.0, "float32", bytes=4000), _row("tflite", 0.0, "float32", bytes=3900),
        _row("onnx", 0.5, "int8", bytes=512, accuracy=0.4567, ratio=0.25),
        *(_row("onnx", 0.0, name, accuracy=0.4) for name in TYPES),
    ]  # fmt: skip
    page = render({"environment": "a machine", "rows": dict(enumerate(rows))})
    lines = {
        cells[0]: cells[1:] for cells in ([c.strip() for c in li.split("|")[1:-1]] for li in page.splitlines()) if cells
    }
    assert lines["dense"] == ["4,000", "50.00", "1.00", "1.00", "3,900", "50.00", "1.00", "1.00"]
    assert lines["folded, 50% of the weights removed + int8"] == ["512", "45.67", "1.00", "0.25", "", "", "", ""]
    assert lines["net"] == ["40.00, 1.00"] * 3
    assert (label(0.0, "int8"), label(0.85, "float32")) == ("int8", "folded, 85% of the weights removed")


def test_files_are_measured_as_they_are(tmp_path: Path) -> None:
    dense = chain_conv(0)
    onnx.save(dense, tmp_path / "dense.onnx")
    quick_fold(dense, 0.0, dtype="int8").save(tmp_path / "int8.onnx")
    variants = [
        Variant("net", "onnx", 0.0, n, tmp_path / f) for n, f in (("int8", "int8.onnx"), ("float32", "dense.onnx"))
    ]
    labels = run(dense, {"x": IMAGES})[0].argmax(axis=1).astype(np.uint8)
    found = [size_and_accuracy(variant, IMAGES, labels) for variant in variants]
    assert found[1]["accuracy"] == 1.0
    assert 0.8 < found[0]["accuracy"] <= 1.0
    assert [row["bytes"] for row in found] == [variant.path.stat().st_size for variant in variants]
    timed = times(variants, IMAGES[:1])
    assert timed[variants[1].key]["ratio"] == 1.0  # ratios are to the dense file, wherever it stands
    assert timed[variants[0].key]["ms"] > 0.0
