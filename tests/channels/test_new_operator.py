"""An operator that one rule file adds is merged, repaired, measured and budgeted like those that were always there."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import onnxfold
from onnxfold.channels import context
from onnxfold.errors import NothingToFoldError
from onnxfold.graph.registry import OperatorRegistry
from onnxfold.inspection import inspect_model
from testing.graph_builder import GraphBuilder
from testing.models import run

WIDTHS, TAPS = (12, 12, 8), 9
RULE = "tests.channels.deform_conv"


@pytest.fixture
def rule(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Import the rule file, and forget it afterwards."""
    found = OperatorRegistry[context.ChannelRule]("a channel rule")
    for domain, op_type, known in context._RULES:
        found.add(op_type, known, since=known.since, domain=domain)
    monkeypatch.setattr(context, "_RULES", found)
    monkeypatch.setattr("onnxfold.channels.layers.find_rule", found.find)
    monkeypatch.setattr("onnxfold.channels.walker.find_rule", found.find)
    importlib.import_module(RULE)
    yield
    del sys.modules[RULE]


def network(*, bias: bool) -> onnx.ModelProto:
    """Two deformable convolutions with a mask, hence with an input behind the bias."""
    g = GraphBuilder("deform", 0, (3, 8, 8), 19, ir_version=9)
    offsets, mask = g.conv("x", 2 * TAPS), g.sigmoid(g.conv("x", TAPS))
    h = g.relu(g.conv("x", WIDTHS[0]))
    for i, width in enumerate(WIDTHS[1:]):
        weight = g.constant(f"deform_{i}_w", g.normal(width, g.channels(h), 3, 3, std=0.15))
        vector = g.constant(f"deform_{i}_b", g.normal(width, std=0.2)) if bias else ""
        inputs = [h, weight, offsets, vector, mask]
        h = g.relu(g.node("DeformConv", inputs, [width, 8, 8], f"deform_{i}", kernel_shape=[3, 3], pads=[1, 1, 1, 1]))
    g.output(g.head(h))
    return g.build()


@pytest.fixture(scope="module")
def samples() -> dict[str, NDArray[Any]]:
    return {"x": np.random.default_rng(1).standard_normal((48, 3, 8, 8)).astype(np.float32)}


def folded(model: onnx.ModelProto, samples: dict[str, NDArray[Any]], repair: str, **options: Any) -> Any:
    options = {"channel_ratio": 0.5, **options}
    return onnxfold.fold(model, repair=repair, calibration=samples, **options)


def weights(model: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    return {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}


def error(model: onnx.ModelProto, other: onnx.ModelProto, samples: dict[str, NDArray[Any]]) -> float:
    return float(np.square(run(model, samples)[0] - run(other, samples)[0]).mean())


def test_without_the_rule_it_is_left_alone(samples: dict[str, NDArray[Any]]) -> None:
    with pytest.raises(NothingToFoldError, match="no channel rule"):
        folded(network(bias=True), samples, "least-squares")


@pytest.mark.usefixtures("rule")
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
def test_it_is_merged_and_repaired_by_least_squares(samples: dict[str, NDArray[Any]], bias: bool) -> None:
    model = network(bias=bias)
    plain, repaired = (folded(model, samples, repair) for repair in ("none", "least-squares"))
    for result in (plain, repaired):
        assert weights(result.model)["deform_0_w"].shape == (6, 6, 3, 3)
        assert weights(result.model)["deform_1_w"].shape == (4, 6, 3, 3)
    before, after = weights(plain.model), weights(repaired.model)
    assert not np.allclose(before["deform_1_w"], after["deform_1_w"], rtol=1e-2)  # it consumes what was merged
    assert error(model, repaired.model, samples) < 0.25 * error(model, plain.model, samples)
    inputs = [list(n.input) for n in repaired.model.graph.node if n.op_type == "DeformConv"]
    assert all(len(names) == 5 and names[3] in after for names in inputs)  # a bias each, the mask is where it was
    assert all(np.any(after[names[3]]) for names in inputs)


@pytest.mark.usefixtures("rule")
def test_it_is_measured(samples: dict[str, NDArray[Any]]) -> None:
    ratios = {
        v.layer: v for v in folded(network(bias=True), samples, "least-squares").report.diagnostics.variance_ratios
    }
    for name, width in (("deform_0", 12), ("deform_1", 8)):
        assert ratios[name].channels + ratios[name].left_out == width
        assert ratios[name].mean == pytest.approx(1.0, abs=0.1)  # restored


@pytest.mark.usefixtures("rule")
def test_it_is_budgeted(samples: dict[str, NDArray[Any]]) -> None:
    model = network(bias=False)
    result = folded(model, samples, "least-squares")
    offsets = 64 * 3 * TAPS * 3 * TAPS  # the two convolutions on the input
    for size, (a, b, c) in ((result.report.before, WIDTHS), (result.report.after, (6, 6, 4))):
        assert size.macs == offsets + 64 * TAPS * (3 * a + a * b + b * c) + 5 * c
    limit = (result.report.before.macs + result.report.after.macs) // 2
    assert folded(model, samples, "least-squares", channel_ratio=None, max_macs=limit).report.after.macs <= limit


@pytest.mark.usefixtures("rule")
def test_a_limit_leaves_room_for_its_biases(samples: dict[str, NDArray[Any]]) -> None:
    model = network(bias=False)
    limit = folded(model, samples, "none", channel_ratio=None, max_params=2000).report.after.parameters
    result = folded(model, samples, "least-squares", channel_ratio=None, max_params=limit)
    assert result.report.after.parameters <= limit
    assert any(n.op_type == "DeformConv" and n.input[3] for n in result.model.graph.node)


@pytest.mark.usefixtures("rule")
def test_its_weights_are_counted_as_foldable() -> None:
    share = inspect_model(network(bias=True)).share
    deform = 12 * 12 * TAPS + 8 * 12 * TAPS
    assert share.weights == 3 * TAPS * 3 * TAPS + 3 * TAPS * WIDTHS[0] + deform + 5 * WIDTHS[2]
