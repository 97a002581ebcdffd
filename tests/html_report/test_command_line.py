"""The command of a report asks for what was asked for."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from onnxfold import api
from onnxfold.cli import cli
from onnxfold.config import OPTIONS, FoldConfig
from onnxfold.config.option import NEVER
from onnxfold.errors import OnnxFoldError
from onnxfold.html_report import command_line
from onnxfold.html_report.sections import render_html
from onnxfold.report import Verdict
from tests.html_report.parse import Page
from tests.html_report.reports import bare

REQUESTS: list[dict[str, Any]] = [
    {},
    {"sparsity": 0.123456789},
    {"channel_ratio": 0.25, "method": "fold-ar", "cluster": "ward", "repair": "none", "seed": 7},
    {"max_params": "1.5M", "max_ram": "256K", "max_macs": 50_000_000, "max_flash": 12345, "allocation": "uniform"},
    {"device": "esp-eye", "round_to": 8, "inputs": "noise"},
    {"min_fidelity": 0.9, "calibration": "my data.npz"},
    {"inputs": "samples.npz"},
    {"samples": 100, "input_seconds": 7.5, "input_steps": (12, 9), "max_memory": "2G"},
    {
        "ratios": {"/a=b/*": 0.1, "conv 'x'": 0.0},
        "keep": ["*head*", "$HOME `x`"],
        "input_shapes": {"x:0": (1, 3, 8, 8)},
    },
]


#: A value that is not the default, of every option that decides a result; some exclude others.
CHANGED: dict[str, Any] = {
    "sparsity": 0.25, "channel_ratio": 0.25, "ratios": {"a=b/*": 0.125, "c": 0.0}, "method": "fold-ar",
    "cluster": "ward", "repair": "none", "allocation": "uniform", "max_params": "1M", "max_macs": "50000",
    "max_ram": "256K", "max_flash": "2M", "max_latency": "0.6x", "tolerance": 7.5,
    "latency_table": "REPORT.json", "device": "esp-eye",
    "min_fidelity": 0.9, "data": "labelled.npz", "max_drop": 1.5, "inputs": "noise", "samples": 77,
    "input_seconds": 7.5, "input_steps": (12, 9), "calibration": "my data.npz", "tokenizer": "to ken.json",
    "vocabulary": "latin,common",
    "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "channels": "bgr",
    "lossless": True, "round_to": 8, "objective": "macs",
    "keep": ("*head*", "$HOME `x`"), "input_shapes": {"x:0": (1, 3), "y": (2,)}, "allow_cache_change": True,
    "per_layer_cache": True, "drop_blocks": 2, "refine": "norms", "refine_steps": 5,
    "dtype": "int8", "seed": 7,
    "threads": 3, "save_as_external_data": True, "max_memory": "2G", "torch_device": "cpu",
}  # fmt: skip
#: What an option needs beside it.
NEEDS: dict[str, dict[str, Any]] = {
    "latency_table": {"max_latency": "0.6x"},
    "threads": {"max_latency": "0.6x"},
    "data": {"max_drop": 1.0},
    "max_drop": {"data": "labelled.npz"},
    "mean": {"std": 0.5},
    "std": {"mean": 0.5},
    "channels": {"mean": 0.5, "std": 0.5, "calibration": "photos"},
    "per_layer_cache": {"allow_cache_change": True},
    "refine_steps": {"refine": "all"},
    "torch_device": {"refine": "all"},
}
#: Options that go together; with those of CHANGED, they are every one.
TOGETHER = (
    {name: CHANGED[name] for name in CHANGED if name not in (
        "channel_ratio", "max_latency", "latency_table", "threads", "min_fidelity", "data", "max_drop",
        "channels", "lossless", "vocabulary",
    )},
    {name: CHANGED[name] for name in ("sparsity", "max_latency", "latency_table", "threads", "device")},
    {name: CHANGED[name] for name in (
        "data", "max_drop", "refine", "drop_blocks", "mean", "std", "vocabulary",
    )},
)  # fmt: skip


@pytest.mark.parametrize("request_", [*REQUESTS, *TOGETHER], ids=lambda r: ",".join(r)[:60] or "defaults")
def test_the_command_asks_for_the_same(
    request_: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = FoldConfig(**request_)
    # Limits may be numbers, which a command line has only as text.
    limits = {name: str(limit) for name, limit in config.to_dict()["limits"].items()}
    assert asked_again(config, tmp_path, monkeypatch).to_dict() == config.to_dict() | {"limits": limits}


@pytest.mark.parametrize("option", dataclasses.fields(FoldConfig), ids=lambda option: option.name)
def test_no_option_is_forgotten(
    option: dataclasses.Field[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if option.name in ("verify", "cache"):  # the results are the same
        assert OPTIONS[option.name].recorded == NEVER
        return
    config = FoldConfig(**NEEDS.get(option.name, {}), **{option.name: CHANGED[option.name]})
    again = asked_again(config, tmp_path, monkeypatch)
    assert getattr(config, option.name) != option.default
    assert str(getattr(again, option.name)) == str(getattr(config, option.name))  # of paths, too
    assert again.to_dict() == config.to_dict() | ({"latency_table": "REPORT.json"} if config.needs_latency else {})


def asked_again(config: FoldConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FoldConfig:
    """Return what the command ``fold`` asks for, by the command of a report of this request."""
    asked: dict[str, Any] = {}

    def record(model: Path, sparsity: float | None, **options: Any) -> None:
        known = {field.name for field in dataclasses.fields(FoldConfig)}
        asked["config"] = FoldConfig(sparsity=sparsity, **{k: v for k, v in options.items() if k in known})
        asked["model"] = model
        raise OnnxFoldError("far enough")

    monkeypatch.setattr(api, "fold", record)
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "a model's.onnx"
    model.touch()
    report = bare()
    report.model = str(model)
    report.config = json.loads(json.dumps(config.to_dict()))  # as a file holds it
    program, *arguments = shlex.split(command_line(report))
    assert program == "onnxfold"
    result = CliRunner().invoke(cli, arguments)
    assert "config" in asked, result.output
    assert asked["model"] == model
    found: FoldConfig = asked["config"]
    return found


def test_what_was_in_memory_is_named_so() -> None:
    report = bare()
    report.config = FoldConfig(calibration={"x": np.zeros(1)}).to_dict()
    words = shlex.split(command_line(report))
    assert words[:4] == ["onnxfold", "fold", "IN.onnx", "OUT.onnx"]
    assert words[words.index("--calibration") + 1] == "FILE.npz"
    page = Page(render_html(report))
    assert "FILE.npz stands for the given arrays" in page.texts[page.by_id("reproduce")]


def test_a_destroyed_result_is_written_again_only_by_force() -> None:
    report = bare()
    report.config = FoldConfig().to_dict()
    report.verdict = Verdict("damaged", "y", "50% of the original's answers", "64 samples of data")
    assert "--force" not in shlex.split(command_line(report))
    report.verdict = dataclasses.replace(report.verdict, state="destroyed")
    assert "--force" in shlex.split(command_line(report))
