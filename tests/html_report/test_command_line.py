"""The command of a report asks for what was asked for."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from onnxfold import api
from onnxfold.cli import cli
from onnxfold.config import FoldConfig
from onnxfold.errors import OnnxFoldError
from onnxfold.html_report import command_line
from onnxfold.html_report.page import render_html
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


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: ",".join(r) or "defaults")
def test_the_command_asks_for_the_same(
    request_: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    report.config = FoldConfig(**request_).to_dict()
    program, *arguments = shlex.split(command_line(report))
    assert program == "onnxfold"
    result = CliRunner().invoke(cli, arguments)
    assert "config" in asked, result.output
    assert asked["model"] == model
    # Limits may be numbers, which a command line has only as text.
    limits = {name: str(limit) for name, limit in report.config["limits"].items()}
    assert asked["config"].to_dict() == report.config | {"limits": limits}


def test_what_was_in_memory_is_named_so() -> None:
    report = bare()
    report.config = FoldConfig(calibration={"x": np.zeros(1)}).to_dict()
    words = shlex.split(command_line(report))
    assert words[:4] == ["onnxfold", "fold", "IN.onnx", "OUT.onnx"]
    assert words[words.index("--calibration") + 1] == "FILE.npz"
    page = Page(render_html(report))
    assert "FILE.npz stands for the given arrays" in page.texts[page.by_id("reproduce")]
