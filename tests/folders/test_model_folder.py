"""A folder of a language model is folded into a new folder: whole or not at all, with everything else as it was."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import onnxfold as package
from onnxfold.errors import ConfigError, ModelLoadError, ModelNotFoundError, UnsupportedModelError
from onnxfold.folders import folder_of, model_file
from onnxfold.folding.fold_result import FoldResult
from testing.language_models import decoder
from testing.model_folders import UNKNOWN, write_genai_folder, write_optimum_folder
from tests.files.command import RUNS_NOTHING, files_of_at_most, onnxfold, snapshot

HALF = ("--channel-ratio", 0.5, *RUNS_NOTHING)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_genai_folder(tmp_path_factory.mktemp("genai") / "model")


@pytest.fixture(scope="module")
def folded(source: Path) -> FoldResult:
    return package.fold(source, channel_ratio=0.5, method="prune-l1", verify=False)


def _without_model(folder: Path) -> dict[str, tuple[str | None, int]]:
    """What everything else holds, and its mode."""
    return {
        name: (found if (folder / name).is_file() else None, mode)
        for name, (found, mode) in snapshot(folder).items() if not name.startswith("model.onnx")
    }  # fmt: skip


def test_everything_but_the_model_is_copied(source: Path, tmp_path: Path) -> None:
    before = snapshot(source)
    done = onnxfold("fold", source, tmp_path / "out", *HALF, "--report", tmp_path / "r.json")
    assert done.code == 0, done.stderr
    assert f"wrote {tmp_path / 'out'}" in done.stdout
    assert snapshot(source) == before
    assert _without_model(tmp_path / "out") == _without_model(source)
    assert set(UNKNOWN) <= set(snapshot(tmp_path / "out"))
    weights = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False).graph.initializer
    assert {e.value for t in weights for e in t.external_data if e.key == "location"} == {"model.onnx.data"}
    assert json.loads((tmp_path / "r.json").read_text())["sparsity"] > 0.2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "r.json"]


def test_a_folder_of_optimum_in_one_file(tmp_path: Path) -> None:
    source = write_optimum_folder(tmp_path / "in")
    result = package.fold(source, channel_ratio=0.5, method="prune-l1", verify=False)
    assert result.save(tmp_path / "out") == tmp_path / "out"
    assert _without_model(tmp_path / "out") == _without_model(source)
    assert not list((tmp_path / "out").glob("*.data"))
    onnx.checker.check_model(tmp_path / "out" / "model.onnx", full_check=True)


def test_links_inside_lead_to_the_same_place(source: Path, folded: FoldResult, tmp_path: Path) -> None:
    copied = write_genai_folder(tmp_path / "in")
    (copied / "beside.txt").symlink_to(copied / "NOTICE.txt")  # by its whole path
    (copied / "chat" / "up.json").symlink_to("../tokenizer.json")
    (copied / "again").symlink_to("chat")
    (copied / "round").symlink_to(".")
    (copied / "weights").symlink_to("model.onnx.data")
    package.fold(copied, channel_ratio=0.5, method="prune-l1", verify=False).save(tmp_path / "out")
    links = {n: (tmp_path / "out" / n).resolve() for n in ("beside.txt", "chat/up.json", "again", "round", "weights")}
    out = (tmp_path / "out").resolve()
    assert all((out / name).is_symlink() for name in links)
    assert links == {
        "beside.txt": out / "NOTICE.txt", "chat/up.json": out / "tokenizer.json", "again": out / "chat", "round": out,
        "weights": out / "model.onnx.data",
    }  # fmt: skip


def test_weights_under_a_link_become_a_file(tmp_path: Path) -> None:
    source = write_genai_folder(tmp_path / "in")
    (source / "model.onnx.data").rename(source / "chat" / "stored")
    (source / "model.onnx.data").symlink_to("chat/stored")
    package.fold(source, channel_ratio=0.5, method="prune-l1", verify=False).save(tmp_path / "out")
    assert not (tmp_path / "out" / "chat" / "stored").exists()
    assert not (tmp_path / "out" / "model.onnx.data").is_symlink()
    onnx.load(tmp_path / "out" / "model.onnx")


def _outside(folder: Path) -> None:
    (folder / "vocab.txt").symlink_to("../secret")


def _folder_outside(folder: Path) -> None:
    (folder / "more").symlink_to("..")


def _fifo(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


def _two(folder: Path) -> None:
    (folder / "model.onnx").rename(folder / "decoder_model.onnx")
    onnx.save(decoder(), folder / "decoder_with_past_model.onnx")


def _none(folder: Path) -> None:
    (folder / "model.onnx").unlink()


def _linked(folder: Path) -> None:
    (folder / "model.onnx").rename(folder / "chat" / "of.bin")
    (folder / "model.onnx").symlink_to("chat/of.bin")


def _other_name(folder: Path) -> None:
    (folder / "model.onnx").rename(folder / "other.onnx")


def _no_json(folder: Path) -> None:
    (folder / "genai_config.json").write_text("{")


def _a_list(folder: Path) -> None:
    (folder / "genai_config.json").write_text("[]")


def _no_config(folder: Path) -> None:
    (folder / "genai_config.json").unlink()


REFUSED: dict[str, tuple[Callable[[Path], None], type[Exception], str]] = {
    "link outside": (_outside, ConfigError, "vocab.txt' is a link out of its folder"),
    "link to a folder outside": (_folder_outside, ConfigError, "more' is a link out of its folder"),
    "FIFO": (_fifo, ConfigError, "pipe' is a FIFO"),
    "several models": (_two, UnsupportedModelError, "decoder_model.onnx, decoder_with_past_model.onnx"),
    "no model": (_none, ModelNotFoundError, "is a folder without an ONNX model"),
    "a link for a model": (_linked, ConfigError, "model.onnx' is a link"),
    "another name": (
        _other_name,
        ModelNotFoundError,
        "names the model 'model.onnx', and the folder holds 'other.onnx'",
    ),
    "broken configuration": (_no_json, ModelLoadError, "is not JSON"),
    "configuration of another kind": (_a_list, ModelLoadError, "holds no JSON object"),
    "no configuration": (_no_config, ModelNotFoundError, "is a folder without genai_config.json or config.json"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_line(case: str, tmp_path: Path) -> None:
    change, error, words = REFUSED[case]
    (tmp_path / "secret").write_text("not yours")
    source = write_genai_folder(tmp_path / "in", external=False)
    change(source)
    before = sorted(tmp_path.rglob("*"))
    done = onnxfold("fold", source, tmp_path / "out", *HALF)
    assert done.code == error.exit_code  # type: ignore[attr-defined]
    assert len(done.stderr.strip().splitlines()) == 1
    assert words in done.stderr
    with pytest.raises(error, match=words.split("'")[0]):
        package.inspect(source)
    assert sorted(tmp_path.rglob("*")) == before


OUTPUTS = {
    "inside": ("in/out", "which is read: give a path outside of it"),
    "inside by a link": ("here/in/chat/out", "which is read: give a path outside of it"),
    "itself": ("in", "is not an empty folder"),
    "around it": (".", "is not an empty folder"),
    "a file": ("file", "is not an empty folder"),
    "called like a file": ("out.onnx", "is a folder, so OUT is one, too"),
    "nowhere": ("no/out", "does not exist"),
    "a report inside": ("out --report in/report.json", "which is read: give a path outside of it"),
    "a report in the new folder": ("empty --report empty/report.json", "are the same file"),
}


@pytest.mark.parametrize("case", OUTPUTS)
def test_outputs_are_checked_before_any_work(
    case: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, expected = OUTPUTS[case]
    write_genai_folder(tmp_path / "in")
    (tmp_path / "here").symlink_to(".")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("mine")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(package.api, "fold", None)
    before = sorted(tmp_path.rglob("*"))
    done = onnxfold("fold", "in", *words.split(), *HALF)
    assert done.code == 2
    assert expected in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_a_result_checks_its_folder_again(source: Path, folded: FoldResult, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="outside of it"):
        folded.save(source / "out")
    with pytest.raises(ConfigError, match="give the path of a new folder"):
        folded.save(tmp_path / "out.onnx")
    (tmp_path / "out").mkdir(0o750)
    folded.save(tmp_path / "out")
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o750
    with pytest.raises(ConfigError, match="not an empty folder"):
        folded.save(tmp_path / "out")


def test_the_working_folder_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_genai_folder(tmp_path / "in")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    result = package.fold("in", channel_ratio=0.5, method="prune-l1", verify=False)
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="outside of it"):
        result.save("../in/out")
    result.save("out")
    assert _without_model(tmp_path / "elsewhere" / "out") == _without_model(tmp_path / "in")


def test_a_full_disk_leaves_nothing(folded: FoldResult, tmp_path: Path) -> None:
    with files_of_at_most(20_000), pytest.raises(package.errors.ModelSaveError):
        folded.save(tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_what_vanishes_while_it_is_folded_is_told(tmp_path: Path) -> None:
    source = write_genai_folder(tmp_path / "in", external=False)
    result = package.fold(source, channel_ratio=0.5, method="prune-l1", verify=False)
    (source / "NOTICE.txt").unlink()
    (source / "NOTICE.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(ModelLoadError, match=r"NOTICE.txt' cannot be read"):
        result.save(tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_inspect_and_compare_take_folders(source: Path, folded: FoldResult, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    folded.save(tmp_path / "out")
    (tmp_path / "text.txt").write_text("abcdefghij " * 20)
    assert onnxfold("inspect", source).stdout == onnxfold("inspect", source / "model.onnx").stdout != ""
    assert package.inspect(source)[0].name == "node_qkv_0_coordinates"
    text = ("--text", tmp_path / "text.txt", "--window", 16, "--windows", 4)
    done = onnxfold("compare", source, tmp_path / "out", *text)
    assert done.code == 0, done.stderr
    assert "perplexity" in done.stdout
    files = onnxfold("compare", source / "model.onnx", tmp_path / "out" / "model.onnx", *text)
    told = [next(line for line in d.stdout.splitlines() if "perplexity" in line) for d in (done, files)]
    assert told[0] == told[1]


def test_a_text_compares_folders_with_other_caches(source: Path, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "text.txt").write_text("abcdefghij " * 20)
    result = package.fold(source, channel_ratio=0.34, method="fold-ar", verify=False, allow_cache_change=True)
    folded = result.save(tmp_path / "out")
    assert "heads in 4 caches: 2 in place of 3" in result.report.notes
    found = package.compare(source, folded, text=tmp_path / "text.txt", window=16, windows=4)
    assert found.perplexity is not None
    assert found.perplexity.a != found.perplexity.b


def test_what_is_no_folder_is_taken_as_it_is(source: Path) -> None:
    proto = decoder()
    assert model_file(proto) is proto
    assert folder_of(source / "model.onnx") is None
    assert folder_of("a\0b") is None
    assert model_file(source) == source / "model.onnx"
