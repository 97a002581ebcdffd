"""The picture of a network: its layers and joins, with the widths that the folded model really has."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper

import onnxfold
from onnxfold.channels import find_groups
from onnxfold.folding import write_report as module
from onnxfold.folding.write_report import draw_network
from onnxfold.graph.files.load import load
from onnxfold.html_report import render_html
from onnxfold.report import NetworkNode
from testing import models
from testing.graph_builder import GraphBuilder

QUICK = {"inputs": "dead-leaves", "samples": 16, "cache": None}


def _network(model: onnx.ModelProto) -> list[NetworkNode]:
    return onnxfold.fold(model, 0.5, **QUICK).report.network


def test_layers_and_joins_of_a_residual_network() -> None:
    found = _network(models.residual(0))
    assert [(node.name, node.op_type, node.reads) for node in found] == [
        ("conv_0", "Conv", ()), ("conv_1", "Conv", (0,)), ("conv_2", "Conv", (1,)), ("add_0", "Add", (0, 2)),
        ("conv_3", "Conv", (3,)), ("conv_4", "Conv", (4,)), ("conv_5", "Conv", (3,)), ("add_1", "Add", (5, 6)),
        ("gemm_0", "Gemm", (7,)),
    ]  # fmt: skip
    groups = [node.group for node in found if node.is_layer]
    assert groups[0] == groups[2] == "conv_0"  # the stream of the residual connection
    assert groups[-1] == ""  # the output keeps its width


@pytest.mark.parametrize(
    "build", [models.residual, models.chain_conv, models.depthwise_separable], ids=lambda b: b.__name__
)
def test_widths_are_those_of_the_files(build) -> None:  # type: ignore[no-untyped-def]
    model = build(0)
    result = onnxfold.fold(model, 0.5, allocation="uniform", method="prune-l1", cache=None)
    for weights, width in ((model, "width"), (result.model, "folded_width")):
        held = {w.name: numpy_helper.to_array(w).shape for w in weights.graph.initializer}
        convs = [node for node in weights.graph.node if node.op_type == "Conv"]
        drawn = [getattr(node, width) for node in result.report.network if node.op_type == "Conv"]
        assert drawn == [held[conv.input[1]][0] for conv in convs]


def test_sizes_are_no_flow_and_gates_are_joins() -> None:
    g = GraphBuilder("gated", 0, (1, 3, 8, 8))
    wide = g.conv("x", 4)
    gated = g.mul(wide, g.sigmoid(g.conv(wide, 4, 1)))
    g.output(g.node("Reshape", [gated, g.node("Shape", ["x"], (4,))], (1, 3, 8, 8)))
    model = g.build()
    view = load(model)
    drawn = [found.node for found in draw_network(view, find_groups(view).groups)]
    assert [(node.op_type, node.reads) for node in drawn] == [("Conv", ()), ("Conv", (0,)), ("Mul", (0, 1))]


def test_what_is_too_large_to_be_seen_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_NODES", 3)
    report = onnxfold.fold(models.residual(0), 0.5, method="prune-l1", allocation="uniform", cache=None).report
    assert report.network == []
    assert "Not drawn" in render_html(report)


def test_a_report_names_the_file_the_versions_and_shows_generated_images(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(models.chain_conv(0), str(path))
    report = onnxfold.fold(path, 0.5, **QUICK).report
    page = render_html(report)
    assert report.model_sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert report.model_sha256 in page
    assert {"Python", "numpy", "onnx", "onnxruntime", "scipy"} <= report.versions.keys()
    assert base64.b64encode(report.picture).decode() in page
    assert onnxfold.fold(onnx.load(path), 0.5, **QUICK).report.model_sha256 == ""  # there is no file


def test_images_of_a_user_are_not_shown(tmp_path: Path) -> None:
    model = models.chain_conv(0)
    given = models.random_input(model, 0)
    report = onnxfold.fold(model, 0.5, calibration=given, cache=None).report
    assert report.inputs is not None
    assert report.inputs.kind == "data"
    assert report.picture == b""
    assert "<img" not in render_html(report)
