"""Where a file is written: what is no regular file is refused, links are followed, modes stay."""

import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxfold.errors import ConfigError, ModelSaveError
from onnxfold.files import atomic, replace_file, target_of
from tests.files.command import FAST, files_of_at_most, is_root, onnxfold, snapshot, write_model

OUTPUTS = {
    "fold OUT": "fold in.onnx {}",
    "fold OUT with weights beside it": "fold in.onnx {} --save-as-external-data",
    "fold --report": "fold in.onnx o.onnx --report {}",
    "fold --save-inputs": "fold in.onnx o.onnx --save-inputs {}",
    "bench --json": "bench in.onnx --json {}",
    "bench --html": "bench in.onnx --html {}",
    "export OUT": "export in.onnx {}",
    "export C array": "export in.onnx {} --format c-array",
    "export --report": "export in.onnx o.tflite --report {}",
    "export project": "export in.onnx {} --format arduino",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_model(tmp_path / "in.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def null(folder: Path) -> Path:
    """A null device of the test's own: the machine's must not be at stake."""
    try:
        os.mknod(folder / "null", 0o666 | stat.S_IFCHR, os.stat(os.devnull).st_rdev)
    except (PermissionError, AttributeError):
        pytest.skip("only root may make device nodes")
    return folder / "null"


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path.name)  # paths of sockets are short


def _device(path: Path) -> None:
    os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 7))  # /dev/full


def _link(path: Path) -> None:
    os.mkfifo(path.with_name("fifo"))
    path.symlink_to("fifo")


KINDS = {"FIFO": _fifo, "socket": _socket, "link to a FIFO": _link, **({"device": _device} if is_root() else {})}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("output", OUTPUTS)
def test_what_is_no_file_is_never_replaced(output: str, kind: str, folder: Path) -> None:
    KINDS[kind](folder / "special")
    before = snapshot(folder)
    done = onnxfold(*OUTPUTS[output].format("special").split())
    assert done.code == 2, done.stderr
    assert "'special' is" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert snapshot(folder) == before


@pytest.mark.parametrize("external", [(), ("--save-as-external-data",)])
def test_nothing_is_written_to_the_null_device(external: tuple[str, ...], null: Path, folder: Path) -> None:
    before = snapshot(folder)
    done = onnxfold("fold", "in.onnx", "null", "--report", "null", *FAST, *external)
    assert done.code == 0, done.stderr
    assert "wrote nothing to null" in done.stdout
    assert snapshot(folder) == before


def test_exports_and_benchmarks_write_nothing_to_the_null_device(null: Path, folder: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    before = snapshot(folder)
    assert onnxfold("export", "in.onnx", "null", "--report", "null").code == 0
    once = ("bench", "in.onnx", "--device", "host", "--repeats", 1)
    assert onnxfold(*once, "--json", "null", "--html", "null").code == 0
    assert snapshot(folder) == before


def test_a_report_on_standard_output_is_json_alone(folder: Path) -> None:
    done = onnxfold("fold", "in.onnx", "o.onnx", *FAST, "--report", "-")
    assert json.loads(done.stdout)["method"] == "prune-l1"
    assert "parameters" in done.stderr
    assert "wrote o.onnx" in done.stderr
    done = onnxfold("bench", "in.onnx", "--device", "host", "--repeats", 1, "--json", "-")
    assert json.loads(done.stdout)["results"]
    assert "measured-device" in done.stderr
    assert not (folder / "-").exists()


def test_an_exports_report_on_standard_output_is_json_alone(folder: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    done = onnxfold("export", "in.onnx", "o.tflite", "--report", "-")
    assert json.loads(done.stdout)["path"] == "o.tflite"
    assert "wrote o.tflite" in done.stderr


@pytest.mark.parametrize("line", ["fold in.onnx -", "export in.onnx -", "export in.onnx - --format qemu",
                                  "bench in.onnx --html -",
                                  "fold in.onnx o.onnx --save-inputs -"])  # fmt: skip
def test_nothing_else_goes_to_standard_output(line: str, folder: Path) -> None:
    before = snapshot(folder)
    done = onnxfold(*line.split())
    assert (done.code, done.stdout) == (2, "")
    assert "give the path of a" in done.stderr
    assert snapshot(folder) == before


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_modes_stay(mode: int, folder: Path) -> None:
    for name in ("o.onnx", "r.json"):
        (folder / name).write_text("old")
        (folder / name).chmod(mode)
    options = (*FAST, "--report", "r.json", "--save-as-external-data")
    assert onnxfold("fold", "in.onnx", "o.onnx", *options).code == 0
    for name in ("o.onnx", "o.onnx.data", "r.json"):  # what is new beside a private file is private
        assert stat.S_IMODE((folder / name).stat().st_mode) == mode
        assert (folder / name).read_bytes() != b"old"


def test_exports_keep_modes(folder: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    (folder / "o.tflite").touch(0o600)
    assert onnxfold("export", "in.onnx", "o.tflite", "--no-verify").code == 0
    assert stat.S_IMODE((folder / "o.tflite").stat().st_mode) == 0o600


@pytest.fixture
def elsewhere(folder: Path) -> Path:
    (folder / "elsewhere").mkdir()
    return folder / "elsewhere"


@pytest.mark.parametrize("exists", [False, True])
def test_links_are_followed(exists: bool, elsewhere: Path, folder: Path) -> None:
    """The link stays a link; what it leads to is replaced, in its own folder."""
    pairs = {"o.onnx": "real.onnx", "r.json": "real.json"}
    for link, real in pairs.items():
        (folder / link).symlink_to(elsewhere / real)
        if exists:
            (elsewhere / real).write_text("old")
    assert onnxfold("fold", "in.onnx", "o.onnx", *FAST, "--report", "r.json").code == 0
    assert all((folder / link).is_symlink() for link in pairs)
    onnx.checker.check_model(str(elsewhere / "real.onnx"))
    assert json.loads((elsewhere / "real.json").read_text())
    assert sorted(p.name for p in elsewhere.iterdir()) == ["real.json", "real.onnx"]


def test_weights_are_not_written_behind_a_link_to_another_folder(
    elsewhere: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "o.onnx").symlink_to(elsewhere / "real.onnx")
    before = snapshot(folder)
    monkeypatch.setattr("onnxfold.api.fold", lambda *_, **__: pytest.fail("this is said before any work"))
    done = onnxfold("fold", "in.onnx", "o.onnx", *FAST, "--save-as-external-data")
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    assert done.code == 2
    assert "link to another folder" in done.stderr
    assert snapshot(folder) == before
    (folder / "near.onnx").symlink_to("real.onnx")
    assert onnxfold("fold", "in.onnx", "near.onnx", *FAST, "--save-as-external-data").code == 0
    for name in ("near.onnx", "real.onnx"):
        onnx.checker.check_model(str(folder / name))


def test_links_that_lead_nowhere(folder: Path) -> None:
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    (folder / "c").symlink_to("no/such/file")
    for name, words in (("a", "too many levels"), ("c", "does not exist: create it first")):
        done = onnxfold("fold", "in.onnx", name)
        assert (done.code, words in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("external", [(), ("--save-as-external-data",)])
def test_names_of_every_legal_length(external: tuple[str, ...], folder: Path) -> None:
    name = "n" * 250
    assert onnxfold("fold", "in.onnx", name, *FAST, *external).code == 0
    assert onnxfold("fold", "in.onnx", name, *FAST, *external, "--sparsity", 0.3).code == 0
    onnx.checker.check_model(name)
    done = onnxfold("fold", "in.onnx", "n" * 300, *external)
    assert done.code == 2
    assert "file name too long" in done.stderr
    assert len(done.stderr.splitlines()) == 1


FULL = {
    "OUT": "fold in.onnx o.onnx",
    "weights": "fold in.onnx o.onnx --save-as-external-data",
    "report": "fold in.onnx o.onnx --report r.html",
    "TFLite": "export in.onnx o.tflite --no-verify",
    "C array": "export in.onnx o.h --format c-array --no-verify",
    "project": "export in.onnx project --format qemu",
    "rows": "bench in.onnx --device host --repeats 1 --html r.html",
}


@pytest.mark.parametrize("what", FULL)
def test_a_file_that_cannot_grow_is_named(what: str, folder: Path) -> None:
    """By the system's own limit: every writer meets it, those in C included."""
    if FULL[what].startswith(("export", "bench")):
        pytest.importorskip("ai_edge_litert")
    command, *arguments = FULL[what].split()
    for path in (folder / a for a in arguments if a in ("o.onnx", "r.html", "o.tflite", "o.h")):
        path.write_text("old")
    before = snapshot(folder)
    with files_of_at_most(1500):
        done = onnxfold(command, *arguments, *(FAST if command == "fold" else ()))
    assert done.code == 2, done.stderr
    assert "file too large" in done.stderr
    assert "cannot write '" in done.stderr
    assert "None" not in done.stderr
    assert snapshot(folder) == before


def test_a_full_disk_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    before = snapshot(folder)
    done = onnxfold("fold", "in.onnx", "o.onnx", *FAST)
    assert (done.code, done.stderr) == (2, "error: cannot write 'o.onnx': no space left on the disk\n")
    assert snapshot(folder) == before


@pytest.mark.parametrize("arguments", [("o.tflite",), ("project", "--format", "arduino")])
def test_an_export_and_its_report_appear_together(
    arguments: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_file = atomic.replace_file

    def full(path: Path) -> Any:
        if path.suffix == ".json":
            raise ModelSaveError("no space left on the disk")
        return replace_file(path)

    monkeypatch.setattr(atomic, "replace_file", full)
    before = snapshot(folder)
    done = onnxfold("export", "in.onnx", *arguments, "--report", "r.json", "--no-verify")
    assert (done.code, done.stderr) == (2, "error: no space left on the disk\n")
    assert snapshot(folder) == before


def test_onnxruntime_leaves_and_sends_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import onnxfold, onnxruntime"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ORT_")}
    subprocess.run(command, env={**clean, "TMPDIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}, check=True)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_for_temporary_files_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("onnxfold.edge_bench.bench.prepare_job", full)
    done = onnxfold("bench", "in.onnx", "--device", "host")
    assert done.code == 1
    assert done.stderr == f"error: cannot write '{tempfile.gettempdir()}': no space left on the disk\n"


def test_a_failed_write_without_a_number_is_still_said(tmp_path: Path) -> None:
    with pytest.raises(ModelSaveError, match=r"cannot write '.*x': 12 requested and 3 written"), \
            replace_file(tmp_path / "x"):  # fmt: skip
        raise OSError("12 requested and 3 written")


def test_names_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ModelSaveError, match="null"):
        target_of(tmp_path / "a\0b")
    with pytest.raises(ConfigError, match="JSON report"):
        target_of(Path("-"))


@pytest.fixture(autouse=True)
def _nothing_remains(tmp_path: Path) -> Iterator[None]:
    yield
    assert not list(tmp_path.rglob("*.part"))
