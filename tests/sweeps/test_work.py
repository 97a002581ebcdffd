"""One job: the same fold as by the command, everything measured, and errors as rows."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxfold import api
from onnxfold.cli import cli
from onnxfold.commands.run_demo import bundled_test_images
from onnxfold.progress import silent
from onnxfold.sweeps import measures
from onnxfold.sweeps.answers.pick import describe_row
from onnxfold.sweeps.answers.query import parse
from onnxfold.sweeps.job import Goal, Job, SweepRequest
from onnxfold.sweeps.page import render_page
from onnxfold.sweeps.results import SweepFolder
from onnxfold.sweeps.run import is_due, measure_latencies
from onnxfold.sweeps.work import Failure, Outcome, make_inputs, run_job
from testing.model_folders import write_genai_folder
from tests.sweeps.rows import row

DATA = Path(api.__file__).parent / "data"
REQUEST = SweepRequest(
    (DATA / "lenet5.onnx",), (Goal("sparsity", 0.4),), ("fold-ar",), options={"inputs": "noise", "samples": 32}
)


def _done(job: Job, store: Path) -> Outcome:
    pieces = {role: list(content.pieces()) for role, content in job.contents.items()}
    return run_job(job, pieces, make_inputs(job, pieces, str(store)) if job.needs_inputs else None, str(store))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return 200 of the bundled labelled samples."""
    path = tmp_path_factory.mktemp("data") / "data.npz"
    images, labels = bundled_test_images()
    np.savez(path, x=images[:200], y=labels[:200])
    return path


@pytest.fixture(scope="module")
def outcome(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    (job,) = replace(REQUEST, data=data).jobs()
    return _done(job, tmp_path_factory.mktemp("store"))


def test_everything_is_measured(outcome: Outcome) -> None:
    row = outcome.row
    assert (row.status, row.error) == ("done", None)
    assert row.sparsity == pytest.approx(0.4, abs=0.01)
    for name in ("weights", "macs", "size_bytes", "ram", "flash"):
        assert 0 < getattr(row, name) <= getattr(row, f"{name}_before"), name
    assert row.agreement_on == "data"
    assert row.agreement_samples == 200
    assert row.accuracy is not None
    assert row.accuracy_before is not None
    assert abs(row.accuracy - row.accuracy_before) <= 1.0 - (row.agreement or 0.0) + 1e-9
    assert row.latency_ms is None  # other jobs run here: that is for the last phase
    assert row.inputs == "32 samples of noise"
    assert (row.verdict or "").startswith("verdict: ")


@pytest.fixture(scope="module")
def refined(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    pytest.importorskip("torch")
    options = {**REQUEST.options, "refine_steps": 3}
    _, job = replace(REQUEST, options=options, refinements=("none", "all")).jobs()
    return _done(job, tmp_path_factory.mktemp("refined"))


def test_a_row_says_how_it_was_refined(outcome: Outcome, refined: Outcome) -> None:
    assert describe_row(refined.row).endswith("lenet5.onnx at sparsity 0.4 by fold-ar, refine all, seed 0")
    assert describe_row(outcome.row).endswith("by fold-ar, seed 0")
    rows = [outcome.row, refined.row]
    assert list(filter(parse("refine == all").holds, rows)) == [refined.row]
    assert list(filter(parse("refine == none").holds, rows)) == [outcome.row]
    assert "--refine all --refine-steps 3" in (refined.row.command or "")
    assert "fold-ar, refine all, seed 0" in render_page(rows)


@pytest.mark.parametrize("name", ["outcome", "refined"])
def test_the_command_makes_the_same_model(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = request.getfixturevalue(name)
    monkeypatch.chdir(tmp_path)
    words = shlex.split(outcome.row.command or "")
    assert words[:2] == ["onnxfold", "fold"]
    cli.main([*words[1:], "--no-cache"], standalone_mode=False)
    ((name, content),) = outcome.files.items()
    made = onnx.load(tmp_path / name)
    assert made.SerializeToString() == onnx.load_from_string(content).SerializeToString()


def test_data_of_the_user_travels_and_the_command_names_it(data: Path, tmp_path: Path) -> None:
    request = replace(REQUEST, methods=("fold-r",), options={"calibration": str(data)})
    (job,) = request.jobs()
    done = _done(job, tmp_path)
    assert (done.row.status, done.row.inputs) == ("done", "160 samples of data")
    words = shlex.split(done.row.command or "")
    assert words[words.index("--calibration") + 1] == str(data)
    assert str(tmp_path) not in (done.row.command or "")


def test_a_fold_that_cannot_be_made_is_a_row(tmp_path: Path) -> None:
    (job,) = replace(REQUEST, goals=(Goal("max_macs", "1"),)).jobs()
    row = _done(job, tmp_path).row
    assert (row.status, row.error_type) == ("failed", "BudgetError")
    assert "the budget of macs cannot be reached" in (row.error or "")
    assert row.key == job.key


def test_inputs_that_cannot_be_had_fail_their_folds(tmp_path: Path) -> None:
    (job,) = replace(REQUEST, methods=("fold-r",), options={}).jobs()
    row = _done(job, tmp_path).row
    assert (row.status, row.error_type) == ("failed", "ConfigError")
    assert "--calibration" in (row.error or "")


def test_a_bug_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "all_measures", lambda *_, **__: 1 / 0)
    (job,) = REQUEST.jobs()
    row = _done(job, tmp_path).row
    assert (row.status, row.error_type, row.error) == ("failed", "ZeroDivisionError", "division by zero")


def test_a_worker_with_other_versions_folds_nothing() -> None:
    (job,) = REQUEST.jobs()
    other = replace(job, versions={**job.versions, "onnxruntime": "0.1"})
    row = run_job(other, {}, Failure("never", "looked at")).row
    assert (row.status, row.error_type) == ("lost", "VersionError")
    assert "instead of 0.1" in (row.error or "")


def test_a_folder_of_a_language_model(tmp_path: Path) -> None:
    """It travels whole, is folded into a folder, and is timed there."""
    source = write_genai_folder(tmp_path / "model")
    request = SweepRequest((source,), (Goal("channel_ratio", 0.5),), ("prune-l1",), options={"samples": 4})
    (job,) = request.jobs()
    done = _done(job, tmp_path / "store")
    found = done.row
    assert (found.status, found.error) == ("done", None)
    assert done.is_folder
    assert set(done.files) == {p.relative_to(source).as_posix() for p in source.rglob("*") if p.is_file()}
    assert shlex.split(found.command or "")[:4] == ["onnxfold", "fold", str(source), job.name]
    folder = SweepFolder(tmp_path / "sweep")
    with folder.opened():
        found = replace(found, file=folder.add_model(found.file or "", done.files, is_folder=True))
        folder.add(*measure_latencies([found], {found.key: source}, folder.path, silent))
        (timed,) = folder.compact()
    assert timed.latency_ms is not None
    assert timed.latency_ratio is not None
    assert timed.file == f"models/{job.name}"


def test_a_latency_that_cannot_be_had_is_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = row(file="models/gone.onnx", latency_ms=None, latency_host=None, notes="a note")
    assert is_due(missing)
    taken = [*measure_latencies([missing], {missing.key: DATA / "lenet5.onnx"}, tmp_path, silent)]
    present = replace(missing, file="lenet5_2x.onnx")
    monkeypatch.setattr("onnxfold.sweeps.run.latency_of_two", lambda *_, **__: None)
    taken += measure_latencies([present], {missing.key: DATA / "lenet5.onnx"}, DATA, silent)
    for timed, why in zip(taken, ("gone.onnx", "may never end"), strict=True):
        assert not is_due(timed)
        assert timed.latency_ms is None
        assert (timed.notes or "").startswith("a note; latency was not measured: ")
        assert why in (timed.notes or "")
