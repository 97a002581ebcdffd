"""Standard streams that are closed, full, or read by something that leaves: no traceback, nothing misplaced."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from testing import models

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="streams of a POSIX shell")

FOLD = "fold in.onnx out.onnx --method prune-l1 --allocation uniform --sparsity 0.3 --no-verify"


def _shell(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    onnx.save(models.chain_conv(0), str(folder / "in.onnx"))
    script = script.replace("onnxfold", f"{sys.executable} -m onnxfold")
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, cwd=folder)


def test_a_reader_that_leaves_ends_it_quietly(tmp_path: Path) -> None:
    # The pipe is closed before anything is written.
    done = _shell("{ sleep 0.01; onnxfold inspect in.onnx; echo $? >code; } | true", tmp_path)
    assert (tmp_path / "code").read_text().strip() == "141"
    assert done.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_standard_output_is_an_error_of_one_line(tmp_path: Path) -> None:
    done = _shell(f"onnxfold {FOLD} >/dev/full", tmp_path)
    assert done.returncode == 1
    assert done.stderr == "error: standard output cannot be written: No space left on device\n"
    assert onnx.load(str(tmp_path / "out.onnx")).graph.node, "the work was done"


def test_closed_streams_are_not_given_to_files(tmp_path: Path) -> None:
    done = _shell(f"onnxfold {FOLD} >&- 2>&-", tmp_path)
    assert done.returncode == 0
    onnx.checker.check_model(str(tmp_path / "out.onnx"), full_check=True)
    assert _shell("onnxfold inspect missing.onnx 2>&-", tmp_path).returncode == 2


def test_an_encoding_without_the_letters(tmp_path: Path) -> None:
    done = _shell("PYTHONIOENCODING=ascii onnxfold inspect in.onnx", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert "+---" in done.stdout
