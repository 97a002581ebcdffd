"""The README's commands, run literally by a user of the wheel: they print what it shows, but for digits."""

from __future__ import annotations

import re

import onnx
import pytest

from testing.transcripts import masked
from tests.release.conftest import User, readme

#: The most that an accuracy may differ from the README's on another machine, in points.
POINTS = 0.5


def _accuracies(printed: str) -> list[float]:
    lines = [line for line in printed.splitlines() if line.strip().startswith("accuracy")]
    return [float(number) for line in lines for number in re.findall(r"([\d.]+)%", line)]


def test_six_commands_lead_from_the_wheel_to_an_exported_model() -> None:
    lines = [command.line for command in readme()]
    assert [" ".join(line.split()[:2]) for line in lines] == [
        "pip install", "onnxfold demo", "onnxfold fold", "onnxfold compare", "onnxfold sweep", "onnxfold export",
    ]  # fmt: skip
    assert sum(len(_accuracies(command.printed)) for command in readme()) == 4


@pytest.mark.long
def test_the_commands_print_what_is_shown(user: User) -> None:
    for command in readme()[1:]:
        done = user.run(command.line)
        assert done.returncode == 0, done.stderr[-2000:]
        assert masked(done.stdout) == masked(command.printed), command.line
        assert _accuracies(done.stdout) == pytest.approx(_accuracies(command.printed), abs=POINTS)
        if " --pick " in command.line:
            picked = re.search(r"^command: onnxfold fold \S+ \S+ (--sparsity \S+)", done.stdout, re.MULTILINE)
            assert picked
    chosen = next(command.line for command in readme() if " fold " in command.line)
    assert picked[1] in chosen
    onnx.checker.check_model(str(user.folder / "chosen.onnx"), full_check=True)
    assert (user.folder / "chosen.tflite").stat().st_size > 1_000_000
    assert "<svg" in (user.folder / "chosen.html").read_text(encoding="utf-8")


@pytest.mark.long
def test_the_wheel_is_what_ran(user: User) -> None:
    done = user.run("python -c 'import onnxfold; print(onnxfold.__file__)'")
    assert done.stdout.startswith(str(user.environment))
