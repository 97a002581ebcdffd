"""The command: what it prints, its exit codes, and what it refuses before any work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onnxfold import api
from onnxfold.sweeps import run as run_module
from onnxfold.sweeps.page import is_page, render_page
from onnxfold.sweeps.results import SweepFolder, as_parquet
from tests.command_line import onnxfold
from tests.sweeps.rows import row, sweep_rows

MODEL = Path(api.__file__).parent / "data" / "lenet5.onnx"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished sweep."""
    found = SweepFolder(tmp_path_factory.mktemp("sweep") / "out")
    with found.opened():
        found.whole.write_bytes(as_parquet(sweep_rows()))
    return found.path


def test_a_pick_names_the_model_and_the_command(folder: Path) -> None:
    done = onnxfold("sweep", "--out", folder, "--pick", "latency < 0.5x and agreement > 0.95")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "net.onnx at sparsity 0.6 by fold-ar, seed 0"
    assert lines[1].startswith(f"model: {folder}/models/")
    assert lines[-1].startswith("command: onnxfold fold net.onnx ")
    assert "latency: 1.2 ms (0.40x)" in lines
    assert any(line.startswith("agreement: 97.0%") for line in lines)


def test_a_pick_as_json(folder: Path) -> None:
    done = onnxfold("sweep", "--out", folder, "--pick", "weights < 0.5x", "--prefer", "weights", "--json")
    found = json.loads(done.stdout)
    assert (found["weights"], found["status"]) == (200, "done")
    rows = json.loads(onnxfold("sweep", "--out", folder, "--json").stdout)
    assert len(rows) == 25


def test_the_front_is_shown(folder: Path) -> None:
    done = onnxfold("sweep", "--out", folder)
    assert done.returncode == 0
    assert "24 of 25 folds finished" in done.stdout
    assert "wide_net.onnx" in done.stdout
    assert "failed: net.onnx, macs 1, fold-ls, seed 0: the <budget> cannot be reached" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--pick", "agreement > 0.999"], 1, "none of 24 folds meets it; the closest, "),
        (["--pick", "agrement > 0.9"], 2, "did you mean 'agreement'?"),
        (["--pick", "agreement > 0.9", "--prefer", "beauty"], 2, "--prefer 'beauty' is not one of"),
        ([MODEL, "--sparsity", "much"], 2, "'much' is no list of numbers"),
        ([MODEL, "--sparsity", "1.5"], 2, "sparsity"),
        ([MODEL, "--method", "fold-xl"], 2, "fold-xl"),
        ([MODEL, "--jobs", "2", "--scheduler", "tcp://host:1"], 2, "give one of them"),
        (["missing.onnx"], 2, "missing.onnx"),
        ([MODEL, "--data", "missing.npz"], 2, "missing.npz"),
        ([MODEL, "--seeds", "0"], 2, "--seeds"),
    ],
)
def test_what_cannot_be_done_is_one_line(folder: Path, arguments: list[Any], code: int, says: str) -> None:
    done = onnxfold("sweep", "--out", folder, *arguments)
    assert done.returncode == code
    last = done.stderr.strip().splitlines()[-1]
    assert last.lower().startswith("error: ")
    assert says in last
    assert len(SweepFolder(folder).rows()) == 25


@pytest.mark.parametrize("is_link", [False, True])
def test_a_page_of_a_user_stays(is_link: bool, tmp_path: Path) -> None:
    mine, page = tmp_path / "mine.html", tmp_path / "out" / "index.html"
    page.parent.mkdir()
    (mine if is_link else page).write_text("mine")
    if is_link:
        page.symlink_to(mine)
    done = onnxfold("sweep", MODEL, "--out", page.parent, "--sparsity", "0.5")
    assert done.returncode == 2
    assert f"'{page}' " in done.stderr
    assert "give another folder" in done.stderr
    assert (page.read_text(), list(page.parent.iterdir())) == ("mine", [page])
    page.unlink()
    page.write_text(render_page([]))
    assert is_page(page)


def test_a_folder_without_results_is_said(tmp_path: Path) -> None:
    done = onnxfold("sweep", "--out", tmp_path / "none", "--pick", "weights < 1")
    assert done.returncode == 2
    assert "holds no results: give models to fold" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_every_option_reaches_the_folds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    from onnxfold.cli import cli

    given: dict[str, Any] = {}

    def run(request: Any, folder: SweepFolder, place: Any, tell: Any, **options: Any) -> list[Any]:
        given.update(request=request, place=place, options=options, jobs=request.jobs())
        folder.path.mkdir()
        return [row(1)]

    monkeypatch.setattr(run_module, "run_sweep", run)
    arguments = [
        "sweep", str(MODEL), "--out", str(tmp_path / "out"), "--sparsity", "0.3", "--max-macs", "300K", "--method",
        "fold-ls, ifm", "--seeds", "2", "--jobs", "3", "--no-resume", "--objective",
        "weights", "--round-to", "4", "--keep", "fc1", "--input-shapes", "input:1,1,32,32", "--dtype", "int8",
        "--samples", "9", "--allocation", "global", "--inputs", "noise", "--max-memory", "2G",
        "--threads", "2", "--retries", "5",
    ]  # fmt: skip
    done = CliRunner().invoke(cli, arguments, obj={}, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert len(given["jobs"]) == 2 * 2 * 2
    assert (given["place"].jobs, given["place"].retries, given["place"].memory) == (3, 5, 2 << 30)
    assert given["options"] == {"resume": False, "latency_threads": 2}
    config = given["jobs"][0].config({"model": MODEL})
    assert (config.objective, config.round_to, config.keep, config.dtype, config.samples) == (
        "weights", 4, ("fc1",), "int8", 9,
    )  # fmt: skip
    assert dict(config.input_shapes) == {"input": (1, 1, 32, 32)}
    assert (tmp_path / "out" / "index.html").exists()
