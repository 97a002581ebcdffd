"""Networks are merged to a width: what is equal stays, what is not is reported, and the command says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import onnxfold
from onnxfold import merging
from onnxfold.cli import cli
from onnxfold.errors import ConfigError
from onnxfold.report import LatencyRecord
from testing.models import ALL_MODELS, random_input, run
from testing.quick import QUICK

Model = onnx.ModelProto


def quick_merge(models: list[Model], width: float | None = None, **options: Any) -> onnxfold.FoldResult:
    return onnxfold.merge(models, width, **{**QUICK, "cache": None, **options})


def pair(name: str = "residual") -> list[Model]:
    return [ALL_MODELS[name](seed) for seed in (0, 1)]


def difference(a: Model, b: Model) -> float:
    feeds = random_input(a, 3)
    found = zip(run(a, feeds), run(b, feeds), strict=True)
    return max(float(np.abs(x - y).max() / np.abs(x).max()) for x, y in found)


@pytest.mark.parametrize("options", [{}, {"method": "fold-ar"}, {"cluster": "kmeans"}], ids=str)
def test_one_network_twice_comes_back(options: dict[str, Any]) -> None:
    model = ALL_MODELS["residual"](0)
    result = quick_merge([model, model], heads="average", **options)
    assert difference(model, result.model) < 1e-5
    assert result.report.after.macs == onnxfold.api.measure(model).macs


def test_width_counts_channels_of_one_network() -> None:
    result = quick_merge(pair(), 1.5, method="fold-naive")
    assert {g.folded_width / g.width for g in result.report.groups} == {0.75}


def test_sparsity_counts_against_all_weights() -> None:
    models = pair("chain_conv")
    result = quick_merge(models, sparsity=0.6)
    total = sum(onnxfold.api.measure(model).parameters for model in models)
    assert result.report.before.parameters == total
    assert result.report.after.parameters == pytest.approx(0.4 * total, rel=0.05)


def test_the_report_says_how_each_network_is_reproduced() -> None:
    result = quick_merge(pair("chain_conv"), 1.75, heads="join")
    record = result.report.merged
    assert record is not None
    assert record.heads == ("join",)
    errors = [share.fidelity.outputs[0].relative_error for share in record.networks if share.fidelity is not None]
    assert len(errors) == 2
    assert all(0.0 < error < 1.0 for error in errors)
    whole = result.report.fidelity
    assert whole is not None
    assert min(errors) <= whole.outputs[0].relative_error <= max(errors)


def test_inputs_come_from_every_network() -> None:
    inputs = quick_merge(pair("chain_conv"), samples=16).report.inputs
    assert inputs is not None
    assert inputs.samples == 16
    assert "model 1: requested; model 2: requested" in inputs.reason


def test_channels_behind_a_node_are_kept_apart() -> None:
    result = quick_merge(pair("flatten_conv"), until="relu_0", method="fold-naive")
    ratios = [g.folded_width / g.width for g in result.report.groups]
    assert ratios[0] == 0.5
    assert set(ratios[1:]) == {1.0}
    with pytest.raises(ConfigError, match="until='nothing' is no node of model 1"):
        quick_merge(pair("flatten_conv"), until="nothing")


def test_options_that_make_no_sense() -> None:
    models = pair("chain_conv")
    for options, message in [
        ({"width": 2.5}, "width=2.5 must be above 0 and at most 2"),
        ({"width": 0}, "width=0"),
        ({"width": 1.0, "sparsity": 0.5}, "width says how far to merge"),
        ({"heads": "both"}, "heads 'both' is unknown"),
    ]:
        with pytest.raises(ConfigError, match=message):
            quick_merge(models, **options)
    with pytest.raises(ConfigError, match="1 model was given"):
        quick_merge(models[:1])
    with pytest.raises(ConfigError, match="a list of paths"):
        onnxfold.merge("a.onnx")  # type: ignore[arg-type]


def test_the_command(tmp_path: Path) -> None:
    paths = [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    for path, model in zip(paths, pair("chain_conv"), strict=True):
        onnx.save(model, path)
    out = tmp_path / "out.onnx"
    arguments = [*map(str, paths), str(out), "--heads", "join", "--inputs", "dead-leaves", "--samples", "16"]
    result = CliRunner().invoke(cli, ["merge", *arguments, "--cache", "none", "--report", str(tmp_path / "r.json")])
    assert result.exit_code == 0, result.output
    assert "share of a.onnx, verdict: " in result.output
    assert "share of b.onnx, verdict: " in result.output
    assert run(onnx.load(out), random_input(onnx.load(paths[0]), 0))[0].shape[1] == 10
    assert json.loads((tmp_path / "r.json").read_text())["merged"]["heads"] == ["join"]


def test_an_input_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a.onnx"
    onnx.save(ALL_MODELS["mlp"](0), path)
    before = path.read_bytes()
    result = CliRunner().invoke(cli, ["merge", str(path), str(path), str(path)])
    assert isinstance(result.exception, ConfigError)
    assert path.read_bytes() == before


def test_latency_is_compared_with_one_network_too(monkeypatch: pytest.MonkeyPatch) -> None:
    models = pair("chain_conv")
    compared = []

    def times(before: tuple[Model, Any], *_: Any, **__: Any) -> LatencyRecord:
        compared.append(before[0])
        return LatencyRecord(1e-3, 1.1e-3, 1.1, 0.01, 9, 1)

    for module in ("fidelity.verify", "merging"):
        monkeypatch.setattr(f"onnxfold.{module}.latency_of_two", times)
    report = quick_merge(models, verify=True).report
    assert compared[1] is models[0]
    assert compared[0] is not models[0]
    assert report.merged is not None
    assert "latency beside model 1 alone: 1 -> 1.1 ms, 1.10 of it" in str(report)


def test_what_many_networks_share_is_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a merge of hundreds of networks takes a session of all of them for each of them."""
    opened: list[object] = []
    session = merging.Session

    def counting(*args: Any) -> Any:
        opened.append(args)
        return session(*args)

    monkeypatch.setattr(merging, "Session", counting)
    model = ALL_MODELS["mlp"](0)
    result = quick_merge([model] * 4)
    assert len(result.report.merged.networks) == 4  # type: ignore[union-attr]
    assert len(opened) == 2
