"""Output of ``onnxfold fold`` for people, for programs, and for neither."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner, Result

from onnxfold.cli import cli
from testing import models


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "in.onnx"
    onnx.save(models.chain_conv(0), str(path))
    return path


def _fold(model: Path, *args: object) -> Result:
    words = ["--method", "prune-l1", "--allocation", "uniform", "--sparsity", 0.3, *args]
    done = CliRunner().invoke(cli, [str(word) for word in ("fold", model, model.with_name("out.onnx"), *words)])
    assert done.exit_code == 0, done.output
    assert model.with_name("out.onnx").is_file()
    return done


def test_json_is_the_report_and_nothing_else(model: Path) -> None:
    report = model.with_name("report.json")
    done = _fold(model, "--json", "--report", report)
    printed, written = json.loads(done.stdout), json.loads(report.read_text())
    assert printed == written
    assert printed["before"]["parameters"] > printed["after"]["parameters"]
    assert "wrote" in done.stderr
    assert "parameters" in done.stderr


@pytest.mark.parametrize("flag", ["--quiet", "-q"])
def test_a_quiet_fold_says_nothing(model: Path, flag: str) -> None:
    done = _fold(model, flag)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("args", [("--json",), ("--report", "-")])
def test_a_quiet_fold_still_prints_the_json_it_was_asked_for(model: Path, args: tuple[str, ...]) -> None:
    done = _fold(model, "--quiet", *args)
    assert json.loads(done.stdout)["method"] == "prune-l1"
    assert done.stderr == ""


def test_a_quiet_fold_still_warns(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxfold.report.FoldReport.warning", "this model is of no use")
    done = _fold(model, "--quiet")
    assert (done.stdout, done.stderr) == ("", "warning: this model is of no use\n")


def test_a_quiet_fold_shows_no_progress(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_bar(*_: object) -> None:
        raise AssertionError("a bar was made")

    monkeypatch.setattr("onnxfold.commands.fold.ProgressBar", no_bar)
    assert _fold(model, "--quiet").stdout == ""
