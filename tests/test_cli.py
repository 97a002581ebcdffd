"""The command line as users and scripts call it."""

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import onnx
import pytest

from onnxfold import __version__
from onnxfold.commands.shared import print_refusals
from onnxfold.report import Refusal
from testing import models
from tests.command_line import fresh_onnxfold, onnxfold

#: Few generated inputs and no deep inversion.
QUICK = ("--inputs", "dead-leaves", "--samples", 16)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "in.onnx"
    onnx.save(models.residual(0), str(path))
    return path


def test_fold_writes_model_and_report(model: Path, tmp_path: Path) -> None:
    before = model.read_bytes()
    out, report = tmp_path / "out.onnx", tmp_path / "report.json"
    done = fresh_onnxfold(
        "fold", model, out, "--sparsity", 0.4, "--method", "fold-ar", "--allocation", "uniform", "--report", report
    )
    assert done.returncode == 0, done.stderr
    assert "parameters" in done.stdout
    assert "removed" in done.stdout
    data = json.loads(report.read_text())
    assert data["sparsity"] == pytest.approx(0.4, abs=0.01)
    assert data["before"]["parameters"] > data["after"]["parameters"]
    onnx.checker.check_model(str(out), full_check=True)
    assert model.read_bytes() == before


def test_channel_ratio_ratio_keep_and_round_to(model: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    groups = [g["name"] for g in json.loads(onnxfold("inspect", model, "--json").stdout)["groups"]]
    done = onnxfold(
        "fold", model, tmp_path / "out.onnx", *QUICK, "--channel-ratio", 0.5, "--ratio", f"{groups[0]}=0.25",
        "--keep", groups[1], "--round-to", 2, "--report", report,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    by_name = {g["name"]: g for g in json.loads(report.read_text())["groups"]}
    assert by_name[groups[0]]["folded_width"] == 0.75 * by_name[groups[0]]["width"]
    assert by_name[groups[1]]["folded_width"] == by_name[groups[1]]["width"]
    assert all(g["folded_width"] % 2 == 0 for g in by_name.values())


def test_external_data(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    assert onnxfold("fold", model, out, "--save-as-external-data", "--sparsity", 0.3, *QUICK).returncode == 0
    assert (tmp_path / "out.onnx.data").is_file()
    onnx.checker.check_model(str(out), full_check=True)


def test_inspect_prints_groups_shares_and_refusals(model: Path) -> None:
    text = onnxfold("inspect", model).stdout
    assert "lie in fold groups" in text
    assert "left alone" in text
    data = json.loads(onnxfold("inspect", model, "--json").stdout)
    assert {"groups", "refusals", "share", "parameters"} <= data.keys()
    assert all(r["reason"] and r["weights"] > 0 for r in data["refusals"])


def test_refusals_of_like_layers_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A language model has six for each of its layers."""
    layers = [
        Refusal(f"l{i}/up", "MatMul", f"inputs of weight 'l{i}.up' (axis 0)", f"l{i}/norm", 100) for i in range(30)
    ]
    other = [Refusal(f"other{'s' * i}", "Conv", "outputs", "reason", 50) for i in range(9)]
    print_refusals([*layers, *other], verbose=False)
    first, *_, last = lines = capsys.readouterr().out.splitlines()
    assert first == (
        "left alone: 3,000 weights, MatMul 'l0/up' and 29 more like it, inputs of weight 'l0.up' (axis 0): l0/norm"
    )
    assert len(lines) == 9
    assert last == "  ... and 2 more (--verbose shows all)"
    print_refusals(layers[:2], verbose=False)
    assert len(capsys.readouterr().out.splitlines()) == 1
    print_refusals([*layers, *other], verbose=True)
    assert len(capsys.readouterr().out.splitlines()) == 39


def test_compare_with_labels(model: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x = models.random_input(models.residual(0), 0, batch=10)["x"]
    np.savez(tmp_path / "data.npz", x=x, y=random.integers(0, 3, len(x)))
    done = onnxfold("compare", model, model, "--data", tmp_path / "data.npz", "--json")
    data = json.loads(done.stdout)
    assert data["outputs"][0]["relative_error"] == 0.0
    assert data["outputs"][0]["top1_agreement"] == 1.0
    assert data["accuracy_a"] == data["accuracy_b"]


def test_compare_without_data(model: Path) -> None:
    assert "relative error 0" in onnxfold("compare", model, model).stdout


@pytest.mark.parametrize("command", [fresh_onnxfold, onnxfold])
def test_exit_codes(command: Callable[..., CompletedProcess[str]], model: Path, tmp_path: Path) -> None:
    """Of a new interpreter, and of the forked processes that most tests use instead."""
    before = sorted(tmp_path.iterdir())
    codes = [
        command("inspect", model).returncode,
        command("fold", model, "out.onnx", "--channel-ratio", 0.001, cwd=tmp_path).returncode,
        command("fold", "missing.onnx", "out.onnx", cwd=tmp_path).returncode,
    ]
    assert codes == [0, 1, 2]
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("flag", ["--version", "-v"])
def test_version(flag: str) -> None:
    assert __version__ in onnxfold(flag).stdout


def test_verbose_lists_every_group(model: Path, tmp_path: Path) -> None:
    done = onnxfold("fold", model, tmp_path / "out.onnx", "--verbose", "--sparsity", 0.3, *QUICK)
    assert " -> " in done.stdout
    assert "verify in onnxruntime" in done.stderr


@pytest.mark.parametrize("option", ["--method", "--cluster", "--repair"])
def test_help_names_what_an_option_takes(option: str) -> None:
    from onnxfold.cluster.partitioners import PARTITIONERS
    from onnxfold.folding.methods import METHODS, REPAIRS

    told = " ".join(onnxfold("fold", "--help").stdout.split()).replace("- ", "-")  # wrapped at hyphens
    text = told[told.index(f"{option} NAME") :].split(" --")[0]
    names = {"--method": METHODS, "--cluster": PARTITIONERS, "--repair": REPAIRS}[option]
    assert f": {', '.join(names)}." in text
