"""What is told about work in progress, and how it is shown."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import onnxfold
from onnxfold import progress as module
from onnxfold.commands.run_demo import run_demo
from onnxfold.progress import ALL_FOLD_STAGES, ProgressBar, fold_stages
from testing.language_models import decoder
from testing.models import chain_conv, random_input


@pytest.mark.parametrize(
    ("method", "allocation"),
    [("fold-ls", "global"), ("fold-ar", "uniform"), ("flap", "global"), ("fold-r", "global"), ("fold-dir", "uniform")],
)
def test_stages_are_told_in_order(method: str, allocation: str) -> None:
    if method == "fold-dir":
        pytest.importorskip("torch")
    numbers: list[int] = []
    bar = ProgressBar(fold_stages())

    def tell(text: str, done: int, total: int) -> None:
        assert any(text.startswith(known) for texts in fold_stages() for known in texts), text
        bar(text, done, total)
        numbers.append(bar._stage)

    data: dict[str, Any] = {"samples": 4} if method == "fold-dir" else {"samples": 4, "inputs": "dead-leaves"}
    if method == "fold-r":
        data = {"calibration": random_input(chain_conv(0), 0, 8)}
    onnxfold.fold(chain_conv(0), 0.3, method=method, allocation=allocation, progress=tell, **data)
    assert numbers == sorted(numbers)
    assert (numbers[0], numbers[-1]) == (1, len(fold_stages()))


def test_what_remains() -> None:
    now = 100.0
    bar = ProgressBar(fold_stages(), clock=lambda: now)
    assert str(bar) == ""
    bar("load")
    assert str(bar) == "stage 1 of 8: load"
    bar("deep inversion", 0, 400)
    assert str(bar) == "stage 3 of 8: deep inversion, 0 of 400"
    now = 120.0
    bar("deep inversion", 100, 400)
    assert str(bar) == "stage 3 of 8: deep inversion, 100 of 400, about 60 s left"
    bar("deep inversion", 300, 310)
    assert str(bar).endswith("300 of 310, about 1 s left")
    bar("something else", 0, 0)
    assert str(bar) == "stage 3 of 8: something else"
    bar("fold 2 of 4: partition a[red]b", 0, 0)
    assert str(bar) == "fold 2 of 4, stage 5 of 8: partition a[red]b"
    plain = ProgressBar(clock=lambda: now)
    plain("net.onnx on this machine", 0, 3)
    assert str(plain) == "net.onnx on this machine, 0 of 3"


def test_what_remains_does_not_grow() -> None:
    now = 100.0
    bar = ProgressBar(clock=lambda: now)
    bar("fold", 0, 10)
    now = 110.0
    bar("fold", 5, 10)
    assert str(bar) == "fold, 5 of 10, about 10 s left"
    now = 114.0  # the same step
    assert str(bar) == "fold, 5 of 10, about 6 s left"
    bar("fold", 6, 10)
    assert str(bar) == "fold, 6 of 10, about 6 s left"
    now = 160.0
    bar("fold", 7, 10)
    assert str(bar) == "fold, 7 of 10"
    bar("fold", 0, 10)  # once more
    now = 161.0
    bar("fold", 1, 10)
    assert str(bar) == "fold, 1 of 10, about 9 s left"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines every few milliseconds."""
    monkeypatch.setattr(module, "_QUIET_SECONDS", 0.01)
    monkeypatch.setattr(module, "_SECONDS_PER_LINE", 0.02)


@pytest.mark.usefixtures("impatient")
def test_lines_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Also while one step takes long."""
    shown = ""
    with ProgressBar(fold_stages()) as tell:
        tell("find fold groups", 0, 0)
        end = time.monotonic() + 60.0  # a busy machine may need long
        while shown.count("\n") < 2 and time.monotonic() < end:
            time.sleep(0.01)
            shown += capsys.readouterr().err
    assert shown.count("\n") >= 2
    assert set(shown.splitlines()) == {"stage 2 of 8: find fold groups"}


def test_nothing_is_shown_of_short_work(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar() as tell:
        tell("load", 0, 0)
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("impatient")
def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module, "_is_terminal", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with ProgressBar(fold_stages()) as tell:
        tell("load", 0, 0)
        end = time.monotonic() + 60.0  # a busy machine may need long
        while tell._bar is None and time.monotonic() < end:
            time.sleep(0.01)
        tell("deep inversion", 3, 7)
        tell._bar.refresh()
    assert "stage 3 of 8: deep inversion, 3 of 7" in capsys.readouterr().err


@pytest.mark.usefixtures("impatient")
def test_the_demo_tells_which_fold_it_is_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("onnxfold.commands.run_demo.SPARSITIES", (0.5,))
    run_demo(tmp_path, "lenet5")
    assert "fold 1 of 1, stage " in capsys.readouterr().err


def test_stages_follow_from_the_request() -> None:
    plain, everything = fold_stages(), fold_stages(measures=True, quantizes=True, drops=True, refines=True)
    assert everything == ALL_FOLD_STAGES
    assert len(plain) == len(everything) - 5
    assert ("measure folds",) in fold_stages(measures=True)
    assert any("measure blocks" in stage for stage in fold_stages(drops=True))
    assert any("quantize" in stage for stage in fold_stages(quantizes=True))


def test_a_note_leaves_what_is_being_done_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    bar = ProgressBar(clock=lambda: now)
    bar("fold", 0, 10)
    now = 120.0
    bar("sweep goes on without net.onnx", 0, 0)
    bar("fold", 5, 10)
    assert str(bar) == "fold, 5 of 10, about 20 s left"
    assert capsys.readouterr().err == "sweep goes on without net.onnx\n"


def test_held_out_text_belongs_to_the_verification() -> None:
    """Where the fold itself runs nothing, the text that both models are compared on is no stage of its own."""
    bar, stages = ProgressBar(fold_stages()), []

    def tell(text: str, done: int, total: int) -> None:
        bar(text, done, total)
        if "stage " in str(bar):
            stages.append(int(str(bar).split("stage ")[1].split(" of ")[0]))

    onnxfold.fold(decoder(), 0.1, method="fold-naive", allocation="uniform", progress=tell)
    assert stages == sorted(stages)
    assert stages[-1] == len(fold_stages())
