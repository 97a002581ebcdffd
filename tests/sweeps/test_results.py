"""The folder of a sweep: whole rows or none, each once, whatever ends the process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from onnxfold.errors import ConfigError, ModelLoadError
from onnxfold.sweeps.results import SweepFolder, newest
from tests.sweeps.rows import row


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    return SweepFolder(tmp_path / "sweep")


def test_rows_come_back_as_they_were(folder: SweepFolder) -> None:
    rows = [row(1), row(2, error="line\nbreak \u2028 \x1b", status="lost", weights=2**40, agreement=None)]
    with folder.opened():
        for each in rows:
            folder.add(each)
        assert folder.rows() == {each.key: each for each in rows}
        assert folder.compact() == rows
        assert os.listdir(folder.path / "results") == []
        folder.add(row(1, weights=7))  # measured again
        assert folder.rows()[row(1).key].weights == 7
        assert {each.weights for each in folder.compact()} == {7, 2**40}
    assert len(SweepFolder(folder.path).rows()) == 2


def test_an_end_while_compacting_loses_nothing(folder: SweepFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    with folder.opened():
        folder.add(row(1))
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                folder.compact()
        assert len(list((folder.path / "results").iterdir())) == 1
        assert folder.whole.exists()
        assert folder.compact() == [row(1)]


def test_an_end_while_a_part_is_written_leaves_none(folder: SweepFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    with folder.opened():
        monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            folder.add(row(1))
        assert folder.rows() == {}


def test_one_sweep_at_a_time_writes(folder: SweepFolder) -> None:
    with (
        folder.opened(),
        pytest.raises(ConfigError, match="another sweep writes to"),
        SweepFolder(folder.path).opened(),
    ):
        pass
    with folder.opened():
        pass


def test_what_is_no_result_is_refused(folder: SweepFolder) -> None:
    with folder.opened():
        (folder.path / "results" / "x.parquet").write_bytes(b"no parquet")
        with pytest.raises(ModelLoadError, match=r"x.parquet' is no result of a sweep"):
            folder.rows()
    with pytest.raises(ConfigError, match="is a file"):
        SweepFolder(folder.path / "results" / "x.parquet")


def test_the_newest_version_of_a_setting_counts() -> None:
    old, new = row(1, setting="s"), row(2, setting="s")
    assert newest([new, old, row(3)]) == [new, row(3)]


def test_models_of_one_file_several_files_and_a_folder(folder: SweepFolder) -> None:
    with folder.opened():
        assert folder.add_model("a.onnx", {"a.onnx": b"m", "a.onnx.data": b"w"}, is_folder=False) == "models/a.onnx"
        for _ in range(2):  # a sweep that was killed after this made it, but not the row
            assert folder.add_model("b", {"model.onnx": b"m", "deep/x.json": b"{}"}, is_folder=True) == "models/b"
    found = {p.relative_to(folder.models).as_posix() for p in folder.models.rglob("*") if p.is_file()}
    assert found == {"a.onnx", "a.onnx.data", "b/model.onnx", "b/deep/x.json"}


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxfold.sweeps.extra.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"needs pyarrow, not installed: pip install 'dask"):
        SweepFolder(tmp_path)
