"""The Dockerfile: what it runs, on the files that it copies, by a user with nothing else."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import onnx
import pytest

from testing import models
from tests.release.conftest import ROOT, User


def _instructions() -> list[tuple[str, str]]:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    found = [line.split(" ", 1) for line in lines if re.match(r"[A-Z]+ ", line)]
    return [(name, text) for name, text in found]


def _context(folder: Path) -> Path:
    """Copy the files that Docker would see."""
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    patterns = [pattern.removeprefix("**/") for pattern in ignored]
    shutil.copytree(ROOT, folder, symlinks=True, ignore=shutil.ignore_patterns(*patterns, ".*_cache", "*.egg-info"))
    return folder


@pytest.mark.long
def test_the_image_has_a_command_that_folds(user: User, tmp_path: Path) -> None:
    source, work = _context(tmp_path / "src"), tmp_path / "work"
    assert not (source / "tests").exists()
    work.mkdir()
    onnx.save(models.chain_conv(0), str(work / "in.onnx"))
    inside = user.beside(tmp_path / "environment")
    variables: dict[str, str] = {}
    command: dict[str, list[str]] = {}
    for name, text in _instructions():
        if name == "RUN":
            done = inside.run(text.replace("/src", str(source)), tmp_path, **variables)
            assert done.returncode == 0, done.stderr[-2000:]
        elif name == "ENV":
            variables |= dict([text.split("=", 1)])
        elif name in ("ENTRYPOINT", "CMD"):
            command[name] = json.loads(text)
    assert variables == {"XDG_CACHE_HOME": "/tmp/cache"}  # a folder that any user of a container may write
    (program,) = command["ENTRYPOINT"]
    shown = inside.run(" ".join([program, *command["CMD"]]), work)
    assert shown.returncode == 0
    assert "Usage: onnxfold" in shown.stdout
    done = inside.run(f"{program} fold in.onnx out.onnx --inputs dead-leaves --samples 16", work)
    assert done.returncode == 0, done.stderr
    assert (work / "out.onnx").is_file()
    where = inside.run("python -c 'import onnxfold; print(onnxfold.__file__)'", work)
    assert str(inside.environment) in where.stdout
