"""Every exit code of the table in docs/usage.md, through real processes."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.files.command import FAST, snapshot, write_model

PAGE = Path(__file__).resolve().parents[1] / "docs" / "usage.md"

#: Sends a signal to the run itself at the moment when it would move a complete file into place.
_SIGNALLED = """
import os, signal, sys
real, number, moved = os.replace, int(sys.argv[1]), sys.argv[2]
def replace(source, target):
    if str(target).endswith(moved):
        signal.raise_signal(number)
    real(source, target)
os.replace = replace
sys.argv[1:] = sys.argv[3:]
# A shell starts what runs in the background with interrupts ignored, and this test may run there.
signal.signal(signal.SIGINT, signal.default_int_handler)
from onnxfold.cli import main
main()
"""

#: Sends a signal in the middle of what is imported before anything is run.
_SIGNALLED_EARLY = """
import signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            signal.raise_signal(int(sys.argv[1]))
sys.meta_path.insert(0, Finder())
signal.signal(signal.SIGINT, signal.default_int_handler)
from onnxfold.__main__ import run
run()
"""

CASES = {
    "done": (0, ("inspect", "in.onnx"), ""),
    "no model": (1, ("inspect", "text.onnx"), "error: 'text.onnx' is not an ONNX model"),
    "nothing measured": (
        1,
        ("bench", "in.onnx", "--device", "jetson-nano", "--host", "nobody@127.0.0.1:1"),
        "nothing could be measured",
    ),
    "unknown option": (2, ("fold", "in.onnx", "o.onnx", "--no-such-option"), "no-such-option"),
    "what makes no sense": (2, ("fold", "in.onnx", "in.onnx"), "never overwritten"),
}
SIGNALS = {130: (signal.SIGINT, "interrupted"), 143: (signal.SIGTERM, "terminated")}


def _run(folder: Path, *command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, command)], cwd=folder, capture_output=True, text=True, check=False
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_model(tmp_path / "in.onnx")
    (tmp_path / "text.onnx").write_text("no model")
    return tmp_path


@pytest.mark.parametrize("case", CASES)
def test_exit_code(case: str, folder: Path) -> None:
    code, arguments, words = CASES[case]
    done = _run(folder, "-m", "onnxfold", *arguments)
    assert done.returncode == code, done.stderr
    assert words in done.stderr


@pytest.mark.parametrize("moved", ["o.onnx.data", "o.onnx"])
@pytest.mark.parametrize("code", SIGNALS)
def test_a_signal_ends_a_run_with_its_code_and_leaves_nothing(code: int, moved: str, folder: Path) -> None:
    number, words = SIGNALS[code]
    (folder / "o.onnx").write_text("the old one")
    before = snapshot(folder)
    arguments = ("fold", "in.onnx", "o.onnx", "--save-as-external-data", *FAST)
    done = _run(folder, "-c", _SIGNALLED, int(number), moved, *arguments)
    assert done.returncode == code, done.stderr
    assert done.stderr.strip().splitlines()[-1] == words
    assert "Traceback" not in done.stderr
    assert snapshot(folder) == before


@pytest.mark.parametrize("code", SIGNALS)
def test_a_signal_in_the_first_second(code: int, folder: Path) -> None:
    number, words = SIGNALS[code]
    done = _run(folder, "-c", _SIGNALLED_EARLY, int(number))
    assert (done.returncode, done.stderr) == (code, f"{words}\n")


def test_a_reader_that_leaves(folder: Path) -> None:
    """What was asked for is written, whoever reads what is printed."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "onnxfold", "fold", "in.onnx", "o.onnx", "--report", "r.json", *FAST],
            cwd=folder, stdout=pipe, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (141, b"")
    assert (folder / "o.onnx").exists()
    assert (folder / "r.json").exists()


def test_the_page_lists_these_codes() -> None:
    table = PAGE.read_text(encoding="utf-8").split("## Exit codes\n")[1].split("\n\n")[0]
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert listed == {code for code, _, _ in CASES.values()} | {*SIGNALS, 141}
