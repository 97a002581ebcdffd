"""The mean of what is dropped becomes a bias: exact for channels that do not vary, right on average for others."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from testing.compare import relative_difference
from testing.models import chain_conv, mlp, random_input, run


def _products(bias: bool, activation: str = "Relu") -> onnx.ModelProto:
    """Two MatMuls with an activation between them; the last one has a bias behind it, or none at all."""
    random = np.random.default_rng(0)

    def made(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(random.normal(size=shape).astype(np.float32), name)

    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h0"], "first"),
        helper.make_node("Add", ["h0", "b"], ["h1"]),
        helper.make_node(activation, ["h1"], ["h2"]),
        helper.make_node("MatMul", ["h2", "c"], ["y0" if bias else "y"], "second"),
    ]
    weights = [made("a", 5, 12), made("b", 12), made("c", 12, 4)]
    if bias:
        nodes.append(helper.make_node("Add", ["y0", "d"], ["y"]))
        weights.append(made("d", 4))
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 3, w]) for n, w in (("x", 5), ("y", 4))]
    graph = helper.make_graph(nodes, "products", values[:1], values[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


MODELS = {
    "conv": lambda: chain_conv(0, widths=(6, 8)),
    "gemm": lambda: mlp(0, widths=(6, 8)),
    "product": lambda: _products(True),
    "product without a bias": lambda: _products(False),
}


def _rows(samples: int) -> dict[str, Any]:
    """Return an input of `_products`."""
    return {"x": np.random.default_rng(1).normal(size=(samples, 3, 5)).astype(np.float32)}


def _worst_mean(model: onnx.ModelProto, folded: onnx.ModelProto, feeds: dict[str, Any]) -> float:
    """Return how far the mean of an output lies from the original's, of the output where it lies farthest."""
    one, two = (run(m, feeds)[0].reshape(-1, run(m, feeds)[0].shape[-1]).mean(axis=0) for m in (model, folded))
    return float(np.abs(two - one).max())


def _fold(model: onnx.ModelProto, feeds: dict[str, Any], **options: Any) -> onnxfold.FoldResult:
    return onnxfold.fold(model, calibration=feeds, verify=False, objective="weights", **options)


@pytest.mark.parametrize("kind", ["product", "product without a bias"])
def test_channels_that_do_not_vary_are_made_up_for(kind: str) -> None:
    model = MODELS[kind]()
    for tensor in model.graph.initializer:
        if tensor.name in ("a", "b"):
            values = np.array(numpy_helper.to_array(tensor))
            values[..., [2, 7]] = 0.0 if tensor.name == "a" else 3.0
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    feeds = _rows(16)
    ratios = {"first": 2 / 12}
    folded = _fold(model, feeds, method="flap", channel_ratio=0.0, ratios=ratios)
    assert [g.folded_width for g in folded.report.groups] == [10]
    assert relative_difference(run(model, feeds), run(folded.model, feeds)) <= 1e-5
    bare = _fold(model, feeds, method="flap", repair="none", channel_ratio=0.0, ratios=ratios)
    assert relative_difference(run(model, feeds), run(bare.model, feeds)) > 0.1
    onnx.checker.check_model(folded.model, full_check=True)
    assert [v.name for v in folded.model.graph.output] == ["y"]


@pytest.mark.parametrize("kind", MODELS)
def test_means_of_outputs_come_back(kind: str) -> None:
    """The last consumer is linear, so the mean of its output is that of the original, where channels are dropped."""
    model = MODELS[kind]()
    feeds = random_input(model, 1, batch=48) if "product" not in kind else _rows(48)
    feeds = {name: np.asarray(values, np.float32) for name, values in feeds.items()}
    last = [g.name for g in onnxfold.inspect(model)][-1]
    options = {"cluster": "flap", "channel_ratio": 0.0, "ratios": {last: 0.5}}
    assert _worst_mean(model, _fold(model, feeds, repair="bias", **options).model, feeds) <= 1e-4
    assert _worst_mean(model, _fold(model, feeds, repair="none", **options).model, feeds) > 1e-2


@pytest.mark.parametrize("bias", [True, False])
def test_means_come_back_behind_averages_that_no_activation_bends(bias: bool) -> None:
    """An average of rows computes the average of their channels only where what lies between is linear."""
    model, feeds = _products(bias, "Identity"), _rows(48)
    last = [g.name for g in onnxfold.inspect(model)][-1]
    options = {"cluster": "ward", "channel_ratio": 0.0, "ratios": {last: 0.5}}
    assert _worst_mean(model, _fold(model, feeds, repair="bias", **options).model, feeds) <= 1e-4
    assert _worst_mean(model, _fold(model, feeds, repair="none", **options).model, feeds) > 1e-2


def test_a_limit_of_parameters_has_room_for_biases() -> None:
    model = _products(False)
    feeds = _rows(16)
    report = _fold(model, feeds, method="flap", max_params=80).report
    assert report.after.parameters <= 80
