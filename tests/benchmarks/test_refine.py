"""The benchmark of refinements: rows are kept, and measure what they say."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
from benchmarks import refine


def test_rows_are_kept_when_they_are_done_and_taken_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["resnet32_cifar10_bn", "resnet44_cifar10_bn"]
    for name in names:
        (tmp_path / f"{name}.onnx").touch()
    monkeypatch.setattr(refine, "_test_set", lambda kind, folder: (kind, folder))
    measured: list[tuple[str, float]] = []

    def measure(path: Path, sparsity: float, *_: object) -> list[str]:
        measured.append((path.stem, sparsity))
        if len(measured) == 3:
            raise KeyboardInterrupt
        return ["30.0%", "92%", "88%", "89%", "0.2 -> 0.1", "100", "5"]

    monkeypatch.setattr(refine, "measure", measure)
    page = tmp_path / "page.md"
    words = ["--data", str(tmp_path), "--models", str(tmp_path), "--page", str(page)]
    with pytest.raises(KeyboardInterrupt):
        refine.main(words)
    assert list(json.loads(page.with_suffix(".json").read_text())) == [f"{names[0]}:0.3", f"{names[0]}:0.5"]
    refine.main([*words, "--resume"])
    assert measured[3:] == [(names[1], 0.3), (names[1], 0.5)]
    assert page.read_text().count("| judges |") == 4


def test_cells_of_real_images_stand_behind_their_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "resnet32_cifar10_bn.onnx").touch()
    monkeypatch.setattr(refine, "_test_set", lambda kind, folder: (kind, folder))
    monkeypatch.setattr(refine, "_given_images", lambda kind, folder: kind)
    monkeypatch.setattr(
        refine, "measure", lambda *args: ["30%", "92%", "91%" if args[4:] else "88%", "90%", "", "9", "1"]
    )
    page = tmp_path / "page.md"
    words = ["--data", str(tmp_path), "--models", str(tmp_path), "--page", str(page), "--resume"]
    words += ["--only", "resnet32_cifar10_bn:0.3"]
    refine.main(words)
    assert "| 9 | 1 |  |  |" in page.read_text()
    refine.main([*words, "--real"])
    assert "| 9 | 1 | 91% | 90% |" in page.read_text()


def test_a_row_has_the_accuracy_of_both_folds(small_network: Path) -> None:
    images = np.random.default_rng(0).standard_normal((8, 3, 8, 8)).astype(np.float32)
    cells = refine.measure(small_network, 0.3, images, np.zeros(8, np.int64))
    assert [cell.endswith("%") for cell in cells[:4]] == [True] * 4
    assert int(cells[5]) > 0


@pytest.fixture
def small_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import onnx

    from onnxfold.folding.after import refine as engine
    from testing import models

    monkeypatch.setattr(engine, "_LEAST", 4)
    monkeypatch.setattr(engine, "_MOST", 4)
    path = tmp_path / "net.onnx"
    onnx.save(models.residual(0), path)
    return path
