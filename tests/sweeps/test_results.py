"""The folder of a sweep: whole rows or none, each once, whatever ends the process."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from onnxfold.errors import ConfigError, ModelLoadError
from onnxfold.sweeps.results import SweepFolder, as_parquet, newest
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
        with pytest.raises(ModelLoadError, match=r"x.parquet' is no result of a sweep \(ArrowInvalid\): remove it"):
            folder.rows()
    with pytest.raises(ConfigError, match="is a file"):
        SweepFolder(folder.path / "results" / "x.parquet")


def _tampered(values: dict[str, Any]) -> bytes:
    written = io.BytesIO()
    parquet.write_table(pyarrow.table({name: [value] for name, value in values.items()}), written)
    return written.getvalue()


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("weights", "many", "'weights' has another type"),
        ("weights", {"a": [1]}, "'weights' has another type"),
        ("accuracy", True, "'accuracy' has another type"),
        ("weights", -1, "'-1' cannot be the 'weights' of a fold"),
        ("agreement", 1.5, "'1.5' cannot be the 'agreement' of a fold"),
        ("sparsity", 2.0, "'2.0' cannot be the 'sparsity' of a fold"),
        ("latency_ms", -1.0, "'-1.0' cannot be the 'latency_ms' of a fold"),
        ("status", "perhaps", "'perhaps' cannot be the 'status' of a fold"),
        ("model", None, "'model' has another type"),
        ("file", "models/../../etc/passwd", "'models/../../etc/passwd' cannot be the 'file' of a fold"),
        ("file", "/etc/passwd", "'/etc/passwd' cannot be the 'file' of a fold"),
        ("versions", "[" * 100_000, "cannot be the 'versions' of a fold"),
        ("versions", '{"onnx": 1}', "cannot be the 'versions' of a fold"),
        ("versions", '{"onnxfold": "9"}', "is not that of the row's setting and versions"),
        ("setting", "other", "is not that of the row's setting and versions"),
        ("key", "../../x", "the key '../../x' is not that of the row's setting and versions"),
    ],
)
def test_a_row_that_was_changed_is_refused(column: str, value: object, says: str, folder: SweepFolder) -> None:
    known = {name: v for name, v in row(1).to_dict().items() if v is not None}
    with folder.opened():
        folder.whole.write_bytes(_tampered(known))
        assert folder.rows() == {row(1).key: row(1)}
        folder.whole.write_bytes(_tampered(known | {column: value}))
        with pytest.raises(ModelLoadError) as caught:
            folder.rows()
    assert says in str(caught.value)
    assert str(folder.whole) in str(caught.value)


def test_no_row_is_left_out_in_silence(folder: SweepFolder) -> None:
    with folder.opened():
        folder.whole.write_bytes(as_parquet([row(1), row(2), row(1, weights=7)]))
        with pytest.raises(ModelLoadError, match=f"it has several rows of the job {row(1).key}"):
            folder.rows()
        folder.whole.unlink()
        folder.add(row(1))
        (part,) = (folder.path / "results").iterdir()
        part.rename(part.with_name(f"{row(2).key}.parquet"))
        with pytest.raises(ModelLoadError, match="it has not the one row that its name says"):
            folder.rows()


def test_a_fifo_among_results_is_refused(folder: SweepFolder) -> None:
    with folder.opened():
        os.mkfifo(folder.path / "results" / "x.parquet")
        with pytest.raises(ModelLoadError, match=r"x.parquet' cannot be read: it is no regular file; remove it"):
            folder.rows()


@pytest.mark.parametrize("name", ["models", "results"])
def test_a_folder_of_a_user_is_no_sweep(name: str, folder: SweepFolder) -> None:
    (folder.path / name).mkdir(parents=True)
    with pytest.raises(ConfigError, match=f"{name}' was not written by a sweep, so it stays"), folder.opened():
        pass
    assert os.listdir(folder.path) == [name]


def test_an_error_leaves_no_folder_without_results(folder: SweepFolder) -> None:
    with pytest.raises(KeyboardInterrupt), folder.opened():
        raise KeyboardInterrupt
    assert not folder.path.exists()
    with folder.opened():
        folder.add(row(1))
    with pytest.raises(KeyboardInterrupt), folder.opened():
        raise KeyboardInterrupt
    assert SweepFolder(folder.path).rows() == {row(1).key: row(1)}


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
    monkeypatch.setattr("onnxfold.sweeps.results.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"needs pyarrow, not installed: pip install 'dask"):
        SweepFolder(tmp_path)
