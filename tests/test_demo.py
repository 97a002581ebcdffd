"""The demo: what a newcomer sees first."""

from pathlib import Path

import onnx
import pytest

from onnxfold.commands.run_demo import SPARSITIES, run_demo


@pytest.mark.long
def test_demo_shows_honest_numbers(tmp_path: Path) -> None:
    results = run_demo(tmp_path / "demo", "lenet5_2x")
    reached, accuracy = zip(*results, strict=True)
    assert accuracy[0] > 0.93  # 93.28 % on the 10,000 images, see onnxfold/data/training_log.json
    assert all(abs(r - s) <= 0.01 for r, s in zip(reached[1:], SPARSITIES, strict=True))
    assert accuracy[1] > 0.92
    assert accuracy[2] > 0.87
    files = sorted((tmp_path / "demo").glob("*.onnx"))
    assert len(files) == len(SPARSITIES)
    for path in files:
        onnx.checker.check_model(str(path), full_check=True)
