"""Fold times: phases from the words of the progress, and both sides in one table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.fold_time import phases
from benchmarks.fold_time.phases import Case, by_phase, table
from onnxfold.progress import ALL_FOLD_STAGES

ROOT = Path(__file__).resolve().parents[2]


def _told(scale: float) -> dict[str, Any]:
    seconds = {
        "import onnxfold": 1.0,
        "load": 0.25,
        "find fold groups": 0.5,
        "deep inversion": 8.0,
        "partition /a": 2.0,
    }
    spent = {text: {"cpu": s * scale, "wall": s} for text, s in seconds.items()}
    facts = {"inputs": "8 x noise", "removed": 0.5, "peak": int(scale * 2**30)}
    return {"phases": spent, "total": {"cpu": 11.75 * scale, "wall": 11.75}, **facts}


def test_phases_add_up_words_and_take_the_least_run() -> None:
    found = by_phase([_told(2.0), _told(1.0)], "cpu")
    assert found == {
        "import": 1.0, "open and analyse": 0.75, "inversion": 8.0, "merge and repair": 2.0,
    }  # fmt: skip


def test_every_stage_of_a_fold_has_a_phase() -> None:
    told = [word for stage in ALL_FOLD_STAGES for word in stage]
    run = {"phases": {word: {"cpu": 1.0} for word in told}}
    assert phases._OTHER not in by_phase([run], "cpu")


def test_the_table_shows_both_sides() -> None:
    lines = list(table(phases.Pair(Case("net", Path("net.onnx"), {}), [_told(2.0)], [_told(1.0)])))
    assert "| inversion | 16.0 | 8.0 | 8.0 | 8.0 |" in lines
    assert "| **all** | **23.5** | **11.8** | **11.8** | **11.8** |" in lines


def test_the_summary_marks_folds_that_take_much_memory(tmp_path: Path) -> None:
    model = tmp_path / "net.onnx"
    model.write_bytes(bytes(1000))
    pairs = [phases.Pair(Case("net", model, {}), [_told(2.0)], [_told(1.0)])]
    lines = list(phases.summary(pairs))
    assert lines[0].startswith("Of 1 folds 0 took more")
    assert lines[0].endswith("before, 1.")
    assert "| net | 0.0 | 50.0% | 11.8 | 11.8 | 23.5 | 11.8 | **2048** | 1024 |" in lines


def test_a_side_tells_its_phases_and_only_its_own_code_counts(tmp_path: Path) -> None:
    case = Case("net", ROOT / "onnxfold" / "data" / "lenet5.onnx", {"channel_ratio": 0.5, "method": "fold-naive"})
    told = phases._run(case, ROOT)
    assert told["removed"] > 0.0
    assert told["peak"] > 1 << 26
    assert 0.0 < sum(by_phase([told], "cpu").values()) <= told["total"]["cpu"]
    with pytest.raises(SystemExit, match="imported instead of"):
        phases._belongs(told, tmp_path)
