"""What killed runs leave behind is removed when it is old and nobody's; nothing else is."""

import os
import time
from pathlib import Path

import pytest

from onnxfold.files import new_folder, replace_file
from onnxfold.files.atomic import part_folder
from onnxfold.files.parts import lock, part_directory, part_file

DAY = 24 * 3600


def _age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


@pytest.fixture
def remains(tmp_path: Path) -> Path:
    path = tmp_path / ".onnxfold-0123456789abcdef.part"
    path.mkdir()
    (path / "model.tflite").write_text("half of a model")
    return path.rename(tmp_path / f".onnxfold-0123456789abcdef-{path.stat().st_ino:x}.part")


@pytest.mark.parametrize(("age", "stays"), [(0, True), (DAY - 60, True), (DAY + 60, False)])
def test_remains_are_removed_after_a_day(age: float, stays: bool, remains: Path, tmp_path: Path) -> None:
    _age(remains, age)
    with replace_file(tmp_path / "x") as file:
        file.write(b"new")
    assert remains.exists() == stays


def test_remains_that_a_run_holds_stay(remains: Path, tmp_path: Path) -> None:
    _age(remains, 10 * DAY)
    descriptor = os.open(remains, os.O_RDONLY)
    try:
        assert lock(descriptor)
        with part_folder(tmp_path / "x"):
            assert remains.exists()
    finally:
        os.close(descriptor)
    with part_folder(tmp_path / "x"):
        assert not remains.exists()


def test_running_writers_hold_their_parts(tmp_path: Path) -> None:
    with part_file(tmp_path, private=False) as part, part_directory(tmp_path) as folder:
        for path in (part.path.parent, folder):
            _age(path, 10 * DAY)
        with replace_file(tmp_path / "x") as file:
            file.write(b"new")
        assert part.path.exists()
        assert folder.exists()
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_only_parts_are_removed(tmp_path: Path) -> None:
    names = (
        ".onnxfold-notes", "x.part", ".onnxfold-link.part", ".onnxfold-0123456789abcdef.part", ".onnxfold-.part",
        ".onnxfold-0123456789abcdef-1.part", "important",
    )  # fmt: skip
    mine = [tmp_path / name for name in names]
    for path in mine:
        if "link" in path.name:
            path.symlink_to("important")
        else:
            path.write_text("mine")
            _age(path, 10 * DAY)
    _age(tmp_path / "important", 10 * DAY)
    with replace_file(tmp_path / "y") as file:
        file.write(b"new")
    assert (tmp_path / "important").read_text() == "mine"
    assert all(path.is_symlink() or path.exists() for path in mine)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_errors_leave_nothing(error: type[BaseException], tmp_path: Path) -> None:
    (tmp_path / "x").write_text("old")
    for context in (replace_file(tmp_path / "x"), part_folder(tmp_path / "x"), new_folder(tmp_path / "new")):
        with pytest.raises(error), context:
            raise error
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_text() == "old"


def test_a_new_folder_takes_the_place_of_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir(0o700)
    (tmp_path / "link").symlink_to("private")
    with new_folder(tmp_path / "link") as draft:
        (draft / "file").write_text("content")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "private" / "file").read_text() == "content"
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o700


def test_nobody_else_reads_what_becomes_a_private_file(tmp_path: Path) -> None:
    (tmp_path / "x").touch(0o600)
    with replace_file(tmp_path / "x"):
        (part,) = tmp_path.glob("*.part/*")
        assert part.stat().st_mode & 0o777 == 0o600
