"""int8 exports of real files: no row is lost."""

import argparse
import json
import os
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.int8 import measure_files

#: Gives a row of a folder, and ends the process of a file that is not there; a child imports it at once.
_measure = cast(Any, os.listdir)


def test_a_row_is_kept_when_it_is_done_and_a_worker_that_ends_is_a_row(tmp_path: Path) -> None:
    args = argparse.Namespace(out=tmp_path / "int8.md", jobs=2, resume=False)
    (tmp_path / "int8.json").write_text('{"small": ["small", "of an earlier run"]}')
    small, large = tmp_path / "small.onnx", tmp_path / "large.onnx"
    (small / "row").mkdir(parents=True)
    rows = measure_files(args, [large, small], _measure)
    assert [rows[0][0], rows[0][-1]] == ["large", "worker ended"]
    assert json.loads((tmp_path / "int8.json").read_text()) == {"large": rows[0], "small": ["row"]}
    assert rows[1] == ["row"]


def test_a_run_that_is_resumed_measures_no_row_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[Path] = []
    monkeypatch.setattr("benchmarks.int8.run_in_child", lambda job, **_: measured.append(job.args[0]))
    (tmp_path / "int8.json").write_text('{"a": ["a", "kept"], "b": ["b", "", "", "", "", "", "", "", "worker ended"]}')
    args = argparse.Namespace(out=tmp_path / "int8.md", jobs=1, resume=True)
    rows = measure_files(args, [Path(f"{name}.onnx") for name in "abc"], _measure)
    assert measured == [Path("b.onnx"), Path("c.onnx")]
    assert rows[0] == ["a", "kept"]
