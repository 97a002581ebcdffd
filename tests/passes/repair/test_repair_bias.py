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

RNG = np.random.default_rng(0)


def _products(bias: bool) -> onnx.ModelProto:
    """Two MatMuls with a Relu between them; the last one has a bias behind it, or none at all."""

    def made(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(RNG.normal(size=shape).astype(np.float32), name)

    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h0"], "first"),
        helper.make_node("Add", ["h0", "b"], ["h1"]),
        helper.make_node("Relu", ["h1"], ["h2"]),
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
    feeds = {"x": RNG.normal(size=(16, 3, 5)).astype(np.float32)}
    ratios = {"first": 2 / 12}
    folded = _fold(model, feeds, method="flap", channel_ratio=0.0, ratios=ratios)
    assert [g.folded_width for g in folded.report.groups] == [10]
    assert relative_difference(run(model, feeds), run(folded.model, feeds)) <= 1e-5
    bare = _fold(model, feeds, method="flap", repair="none", channel_ratio=0.0, ratios=ratios)
    assert relative_difference(run(model, feeds), run(bare.model, feeds)) > 0.1
    onnx.checker.check_model(folded.model, full_check=True)
    assert [v.name for v in folded.model.graph.output] == ["y"]


@pytest.mark.parametrize("cluster", ["flap", "ward"])
@pytest.mark.parametrize("kind", MODELS)
def test_means_of_outputs_come_back(kind: str, cluster: str) -> None:
    """The last consumer is linear, so the mean of its output is that of the original, up to what padding does."""
    model = MODELS[kind]()
    feeds = (
        random_input(model, 1, batch=64) if "product" not in kind else {"x": RNG.normal(size=(64, 3, 5)).astype("f")}
    )
    feeds = {name: np.asarray(values, np.float32) for name, values in feeds.items()}
    last = [g.name for g in onnxfold.inspect(model)][-1]
    means = {}
    for repair in ("none", "bias"):
        options = {"cluster": cluster, "repair": repair, "channel_ratio": 0.0, "ratios": {last: 0.5}}
        folded = _fold(model, feeds, **options).model
        outputs = [run(m, feeds)[0].reshape(-1, run(m, feeds)[0].shape[-1]).mean(axis=0) for m in (model, folded)]
        means[repair] = float(np.abs(outputs[1] - outputs[0]).max())
    if cluster == "flap":
        assert means["bias"] <= 1e-4
    assert means["bias"] < means["none"]


def test_a_limit_of_parameters_has_room_for_biases() -> None:
    model = _products(False)
    feeds = {"x": RNG.normal(size=(16, 3, 5)).astype(np.float32)}
    report = _fold(model, feeds, method="flap", max_params=80).report
    assert report.after.parameters <= 80
