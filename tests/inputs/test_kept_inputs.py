"""Inputs from the cache: the same bytes as fresh ones, and only where nothing that decides them changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import onnxfold
from onnxfold.cli import cli
from onnxfold.files import cache
from onnxfold.graph.files.load import load
from onnxfold.graph.files.provenance import fingerprint
from onnxfold.graph.run.session import InputInfo
from onnxfold.inputs import kept_inputs, make_inputs
from onnxfold.inputs.kept_inputs import from_bytes, is_text, to_bytes
from testing import models

QUICK = {"inputs": "deep-inversion", "samples": 8, "input_steps": (2,), "verify": False}


@pytest.fixture
def inversions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Keep whatever is made, and count how often inputs are inverted."""
    calls: list[int] = []
    invert = make_inputs.deep_inversion

    def counting(*args: object, **options: object) -> object:
        calls.append(1)
        return invert(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(kept_inputs, "WORTH_SECONDS", 0.0)
    monkeypatch.setattr(make_inputs, "deep_inversion", counting)
    return calls


def _folded(model: onnx.ModelProto, **options: object) -> tuple[bytes, str, list[str]]:
    result = onnxfold.fold(model, 0.3, **{**QUICK, **options})  # type: ignore[arg-type]
    report = result.report
    assert report.inputs is not None
    # Other notes, on widths and speed, are not about the cache.
    notes = [note for note in report.notes if "cache" in note]
    return result.model.SerializeToString(deterministic=True), report.inputs.reason, notes


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A folder with inputs that were kept, and the folded model."""
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_inputs, "WORTH_SECONDS", 0.0)
        return folder, _folded(models.residual(0), cache=folder)[0]


def test_cached_and_fresh_folds_give_the_same_bytes(tmp_path: Path, inversions: list[int]) -> None:
    model = models.residual(0)
    fresh = _folded(model, cache=None)
    first, again = (_folded(model, cache=tmp_path) for _ in range(2))
    assert first == again == fresh
    assert len(inversions) == 2
    assert len(list(tmp_path.iterdir())) == 1


def test_other_sparsities_and_methods_share_images(tmp_path: Path, inversions: list[int]) -> None:
    model = models.residual(0)
    _folded(model, cache=tmp_path)
    onnxfold.fold(model, 0.5, **QUICK, cache=tmp_path, repair="none")  # type: ignore[arg-type]
    assert len(inversions) == 1


@pytest.mark.parametrize(
    "changed", [{"seed": 1}, {"samples": 9}, {"input_steps": (3,)}, {"max_memory": "1M"}, "weight"]
)
def test_what_decides_the_images_makes_others(
    tmp_path: Path, inversions: list[int], kept: tuple[Path, bytes], changed: object
) -> None:
    model = models.residual(0)
    shutil.copytree(kept[0], tmp_path, dirs_exist_ok=True)
    if changed == "weight":
        model.graph.initializer[0].CopyFrom(models.residual(1).graph.initializer[0])
        changed = {}
    assert isinstance(changed, dict)
    _folded(model, cache=tmp_path, **changed)
    assert len(inversions) == 1


def test_a_damaged_file_is_made_again_with_a_note(tmp_path: Path, inversions: list[int]) -> None:
    model = models.residual(0)
    bytes_, _, notes = _folded(model, cache=tmp_path)
    assert notes == []
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    again, _, notes = _folded(model, cache=tmp_path)
    assert again == bytes_
    assert len(notes) == 1
    assert "damaged" in notes[0]
    assert len(inversions) == 2
    assert _folded(model, cache=tmp_path)[2] == []
    assert len(inversions) == 2


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (b'{"told"', b"[" * 50_000, "it is nested too deeply"),
        (b'{"told"', b'{"tell"', "it does not tell what its values are"),
        (b'"kind": "deep-inversion"', b'"kind": ["x"]', "it does not tell what its values are"),
        (b'"steps": [2]', b'"steps": 2', "it does not tell what its values are"),
        (b'"batches": [', b'"batches": 1, "_": [', "it holds no batches"),
        (b'"x": [', b'"y": [', "its inputs are not those of the model"),
        (b'"float32"', b'"float64"', "'x' has another type or rank"),
        (b'"float32"', b'"O"', "'x' has another type or rank"),
        (b'"float32", [8, ', b'"float32", [-8, ', "'x' has another shape"),
        (b'"float32", [8, ', b'"float32", [8.0, ', "'x' has another shape"),
        (b'"float32", [8, ', b'"float32", [7, ', "it has another length than it says"),
        (b'"float32", [8, ', b'"float32", [9000000000000, ', "buffer is smaller than requested size"),
        (b"\x00\x00\xc0\x7f", b"", "'x' has values that no input has"),
    ],
)
def test_what_was_changed_below_its_checksum_is_made_again(
    old: bytes, new: bytes, why: str, tmp_path: Path, inversions: list[int], kept: tuple[Path, bytes]
) -> None:
    shutil.copytree(kept[0], tmp_path, dirs_exist_ok=True)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()[len(cache._HEAD) + cache._DIGEST :]
    changed = content.replace(old, new, 1) if new else content[:-4] + old  # a NaN
    assert changed != content
    path.write_bytes(cache._frame(path.name, changed))
    again, _, notes = _folded(models.residual(0), cache=tmp_path)
    assert again == kept[1]
    assert len(notes) == 1
    assert why in notes[0]
    assert len(inversions) == 1


def test_a_folder_that_cannot_be_written_is_noted(tmp_path: Path, inversions: list[int]) -> None:
    (tmp_path / "file").write_text("")
    _, _, notes = _folded(models.residual(0), cache=tmp_path / "file" / "folder")
    assert [note for note in notes if "nothing is kept there" in note]
    assert inversions


def test_what_the_clock_decided_is_not_kept(tmp_path: Path, inversions: list[int]) -> None:
    options = {**QUICK, "input_steps": (), "input_seconds": 1e-9}
    result = onnxfold.fold(models.residual(0), 0.3, **options, cache=tmp_path)  # type: ignore[arg-type]
    assert result.report.inputs is not None
    assert any("depend on the speed" in note for note in result.report.notes)
    assert list(tmp_path.iterdir()) == []


def test_what_is_made_quickly_is_not_kept(tmp_path: Path) -> None:
    onnxfold.fold(models.residual(0), 0.3, inputs="noise", samples=8, verify=False, cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [[], ["--no-cache"], ["--cache", "none"], ["--cache", "here"]])
def test_the_options_of_the_command(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inversions: list[int]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.chdir(tmp_path)
    onnx.save(models.residual(0), "in.onnx")
    given = ["--sparsity", "0.3", "--inputs", "deep-inversion", "--samples", "8", "--input-steps", "2", "--no-verify"]
    done = CliRunner().invoke(cli, ["fold", "in.onnx", "out.onnx", *given, *options])
    assert done.exit_code == 0, done.output
    kept = {str(p.parent.relative_to(tmp_path)) for p in tmp_path.rglob("*.cache")}
    assert kept == {(): {"caches/onnxfold"}, ("--cache", "here"): {"here"}}.get(tuple(options), set())


def test_batches_come_back_as_they_are() -> None:
    random = np.random.default_rng(0)
    batches = [
        {
            "x": random.normal(size=(n, 2, 3)).astype(dtype),
            "ids": np.arange(n),
            "flag": np.array(True),
            "empty": np.zeros(0),
        }
        for n, dtype in ((2, np.float16), (1, np.float16))
    ]
    kinds = [
        InputInfo("x", np.dtype(np.float16), (None, 2, None)), InputInfo("ids", np.dtype(np.int64), (None,)),
        InputInfo("flag", np.dtype(bool), ()), InputInfo("empty", np.dtype(np.float64), (0,)),
    ]  # fmt: skip
    found, facts = from_bytes(to_bytes(batches, {"kind": "x\n"}), kinds, {"kind": is_text})
    assert facts == {"kind": "x\n"}
    for batch, kept in zip(batches, found, strict=True):
        assert list(batch) == list(kept)
        for name, values in batch.items():
            assert values.dtype == kept[name].dtype
            assert np.array_equal(values, kept[name])
            assert kept[name].flags.writeable


def test_fingerprints_see_shapes_and_every_weight() -> None:
    model = models.residual(0)
    first = fingerprint(load(model))
    assert fingerprint(load(model)) == first
    assert fingerprint(load(model, {"x": (4, 3, 8, 8)})) != first
    for i in range(len(model.graph.initializer)):
        other = onnx.ModelProto()
        other.CopyFrom(model)
        values = onnx.numpy_helper.to_array(other.graph.initializer[i]).copy()
        values.reshape(-1)[-1] += 1
        other.graph.initializer[i].CopyFrom(onnx.numpy_helper.from_array(values, other.graph.initializer[i].name))
        assert fingerprint(load(other)) != first
