"""A model and its weights never mix: fresh names, the model moved last, and only what nobody reads is removed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfold
from onnxfold.errors import ModelLoadError
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import MARK, save
from testing.models import mlp


def _model(seed: int) -> onnx.ModelProto:
    return mlp(seed, widths=(64, 48))


def _write(seed: int, path: Path) -> None:
    save(load(_model(seed)), path, external_data=True)


def _holds(path: Path, seed: int) -> bool:
    """Whether a file and its weights are the model of a seed, every byte."""
    values = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    expected = {t.name: onnx.numpy_helper.to_array(t) for t in _model(seed).graph.initializer}
    return values.keys() == expected.keys() and all(np.array_equal(values[n], expected[n]) for n in values)


def _data(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.glob("*.data"))


def test_other_weights_get_a_fresh_name_and_the_old_ones_go(tmp_path: Path) -> None:
    path = tmp_path / "o.onnx"
    _write(0, path)
    assert _data(tmp_path) == ["o.onnx.data"]
    _write(1, path)
    (name,) = _data(tmp_path)
    assert name.startswith("o.onnx.")
    assert len(name) == len("o.onnx.0123456789abcdef.data")
    assert _holds(path, 1)
    _write(0, path)
    assert _data(tmp_path) == ["o.onnx.data"]
    assert _holds(path, 0)


def test_the_same_weights_are_used_again(tmp_path: Path) -> None:
    path = tmp_path / "o.onnx"
    _write(0, path)
    before = (tmp_path / "o.onnx.data").stat().st_ino
    _write(0, path)
    assert (tmp_path / "o.onnx.data").stat().st_ino == before
    assert _holds(path, 0)


def test_a_model_in_one_file_takes_the_place_of_one_in_two(tmp_path: Path) -> None:
    _write(0, tmp_path / "o.onnx")
    save(load(_model(1)), tmp_path / "o.onnx")
    assert _data(tmp_path) == []
    assert _holds(tmp_path / "o.onnx", 1)


@pytest.mark.parametrize("content", [b"somebody's", b""])
def test_what_others_wrote_stays(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "o.onnx.data").write_bytes(content)
    _write(0, tmp_path / "o.onnx")
    assert (tmp_path / "o.onnx.data").read_bytes() == content
    assert _holds(tmp_path / "o.onnx", 0)


def test_weights_that_another_program_wrote_stay(tmp_path: Path) -> None:
    path = tmp_path / "o.onnx"
    onnx.save_model(_model(0), str(path), save_as_external_data=True, location="o.onnx.data", size_threshold=64)
    before = (tmp_path / "o.onnx.data").read_bytes()
    assert not before.endswith(MARK)
    _write(1, path)
    assert (tmp_path / "o.onnx.data").read_bytes() == before
    assert _holds(path, 1)


@pytest.mark.parametrize("copy", ["copy.onnx", "o.onnx.bak"])
def test_a_copy_of_the_old_model_keeps_its_weights(copy: str, tmp_path: Path) -> None:
    _write(0, tmp_path / "o.onnx")
    shutil.copyfile(tmp_path / "o.onnx", tmp_path / copy)
    _write(1, tmp_path / "o.onnx")
    assert _holds(tmp_path / copy, 0)
    assert _holds(tmp_path / "o.onnx", 1)


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "o.onnx.data").symlink_to("mine")
    _write(0, tmp_path / "o.onnx")
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "o.onnx.data").is_symlink()
    assert _holds(tmp_path / "o.onnx", 0)


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("stop", range(2))
def test_until_the_model_is_moved_the_old_pair_is_whole(
    stop: int, existing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the run ends between the two moves, no pair of a model and other weights exists."""
    if existing:
        _write(0, tmp_path / "o.onnx")
    moves: list[Path] = []
    real = os.replace

    def replace(source: Path, target: Path) -> None:
        moves.append(target)
        if len(moves) > stop:
            raise KeyboardInterrupt
        real(source, target)

    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        _write(1, tmp_path / "o.onnx")
    assert [m.suffix for m in moves] == [".data", ".onnx"][: stop + 1]
    assert sorted(tmp_path.iterdir()) == before
    assert not existing or _holds(tmp_path / "o.onnx", 0)


def test_a_signal_right_after_the_model_was_moved_leaves_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.replace

    def replace(source: Path, target: Path) -> None:
        real(source, target)
        if target.suffix == ".onnx":
            raise KeyboardInterrupt

    _write(0, tmp_path / "o.onnx")
    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        _write(1, tmp_path / "o.onnx")
    assert _holds(tmp_path / "o.onnx", 1)


def test_a_fold_of_a_fold_with_weights_beside_it(tmp_path: Path) -> None:
    """The usual way to get there: fold, fold that again, into the first one's name by another file."""
    first, second = tmp_path / "a.onnx", tmp_path / "b.onnx"
    options = {"method": "prune-l1", "verify": False, "save_as_external_data": True}
    onnxfold.fold(_model(0), channel_ratio=0.25, **options).save(first)
    onnxfold.fold(first, channel_ratio=0.25, **options).save(second)
    again = onnxfold.fold(second, channel_ratio=0.25, **options)
    again.save(first)
    for path in (first, second):
        onnx.checker.check_model(str(path), full_check=True)
    assert {t.name: t.raw_data for t in onnx.load(first).graph.initializer} == {
        t.name: t.raw_data for t in again.model.graph.initializer
    }


@pytest.mark.parametrize("external", [False, True])
def test_weights_that_changed_meanwhile_are_not_taken_for_the_models(external: bool, tmp_path: Path) -> None:
    """Another model may have been written to the file, with tensors of the same sizes, while this one was folded."""
    path = tmp_path / "in.onnx"
    _write(0, path)
    view = load(path)
    result = onnxfold.fold(path, channel_ratio=0.25, method="prune-l1", verify=False)
    save(load(_model(1)), path)  # removes the old weights
    _write(2, path)  # takes their name
    for broken in (lambda: save(view, tmp_path / "o.onnx", external_data=external), lambda: view.weight("gemm_0_w")):
        with pytest.raises(ModelLoadError, match="changed while the model was in use"):
            broken()
    assert not (tmp_path / "o.onnx").exists()
    result.save(tmp_path / "o.onnx", save_as_external_data=external)  # has read what it needs
    onnx.checker.check_model(str(tmp_path / "o.onnx"), full_check=True)


def test_two_runs_that_write_the_same_output(tmp_path: Path) -> None:
    """Whoever is last, the model that is there has its own weights."""
    code = "import sys; from pathlib import Path; from tests.files.test_weights import _write; " \
        "[_write((i + int(sys.argv[1])) % 3, Path('o.onnx')) for i in range(8)]"  # fmt: skip
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    runs = [
        subprocess.Popen([sys.executable, "-c", code, str(i)], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path})
        for i in range(2)
    ]
    assert [run.wait() for run in runs] == [0, 0]
    assert any(_holds(tmp_path / "o.onnx", seed) for seed in range(3))
    assert not list(tmp_path.glob(".onnxfold-*"))
