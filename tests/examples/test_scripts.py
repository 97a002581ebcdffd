"""The scripts in examples/, as users run them; the notebook is run by ``make notebook``."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfold
from onnxfold import api

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """Return a function that runs a script in this process and returns what it prints."""

    def run_script(name: str, *args: object) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, args)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run_script


def test_every_script_is_run() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [path.name for path in EXAMPLES.glob("*.py") if f'"{path.name}"' not in text] == []


def test_after_a_torch_export(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("onnxscript")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    printed = run("after_torch_export.py", "--out", tmp_path / "out", "--sparsity", 0.4)
    folded = tmp_path / "out" / "net_folded.onnx"
    onnx.checker.check_model(str(folded), full_check=True)
    before, after = api.measure(tmp_path / "out" / "net.onnx"), api.measure(folded)
    assert 1 - after.parameters / before.parameters == pytest.approx(0.4, abs=0.02)
    assert f"wrote {folded}" in printed


@pytest.mark.long
def test_after_an_export_of_a_detector(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """A network of YOLOv8's blocks, whose input is called as Ultralytics calls it; images from a folder."""
    torch = pytest.importorskip("torch")
    pillow = pytest.importorskip("PIL.Image")
    from testing.zoo import detection
    from testing.zoo import export as zoo_export

    path, folded, photos = tmp_path / "yolo.onnx", tmp_path / "folded.onnx", tmp_path / "photos"
    torch.manual_seed(0)
    zoo_export.export(detection.YoloV8().eval(), torch.zeros(1, 3, 64, 64), path, "legacy-fused")
    photos.mkdir()
    for seed in range(8):
        pixels = np.random.default_rng(seed).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        pillow.fromarray(pixels).save(photos / f"{seed}.png")
    printed = run("after_detector_export.py", path, folded, "--images", photos)
    assert onnxfold.compare(path, folded).samples > 0
    assert "removed" in printed
    assert "relative error" in printed
    assert "left alone" in printed


def test_before_firmware(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("ai_edge_litert")
    printed = run("before_firmware.py", "--out", tmp_path)
    assert (tmp_path / "project" / "project.ino").is_file()
    assert api.measure(tmp_path / "folded.onnx").size_bytes < 983_040  # the flash that the board leaves to a sketch
    assert f"files in {tmp_path / 'project'}" in printed
