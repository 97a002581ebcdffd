"""Rows in units of what leaves their BatchNormalization."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfold.channels import find_groups
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.graph.view import GraphView
from onnxfold.passes.merge.normalize_batch_norm import ScaleToOutput
from testing.models import ALL_MODELS, random_input, run

NORMALISED = [
    "chain_conv", "mlp_bn", "residual", "depthwise_separable", "depthwise_multiplier", "grouped_conv", "concat_net",
    "squeeze_excite", "flatten_conv", "autoencoder", "conv1d", "conv3d", "prelu_net", "two_outputs",
]  # fmt: skip
EPSILON = 1e-5


def _scaled(model: onnx.ModelProto) -> tuple[GraphView, bool]:
    view = load(model)
    modified = ScaleToOutput(tuple(find_groups(view).groups))(view).modified
    return view, modified


def _weights(model: onnx.ModelProto) -> dict[str, Any]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


@pytest.mark.parametrize("name", ALL_MODELS)
def test_computes_the_same(name: str) -> None:
    model = ALL_MODELS[name](0)
    view, modified = _scaled(model)
    assert modified or name not in NORMALISED
    feeds = random_input(model, 1)
    for before, after in zip(run(model, feeds), run(to_model(view), feeds), strict=True):
        np.testing.assert_allclose(after, before, atol=2e-4 * max(1.0, float(np.abs(before).max())))


@pytest.mark.parametrize("name", NORMALISED)
def test_a_second_run_changes_nothing(name: str) -> None:
    view, _ = _scaled(ALL_MODELS[name](0))
    once = _weights(to_model(view))
    assert not ScaleToOutput(tuple(find_groups(view).groups))(view).modified
    twice = _weights(to_model(view))
    assert once.keys() == twice.keys()
    assert all(np.array_equal(once[n], twice[n]) for n in once)


def test_statistics_are_those_of_the_new_rows() -> None:
    """The rows are the old ones times gamma / sigma, mean and variance follow, and the scale undoes the division."""
    model = ALL_MODELS["chain_conv"](0)
    old = _weights(model)
    new = _weights(to_model(_scaled(model)[0]))
    for i in (0, 1):
        gamma, sigma = old[f"bn_{i}_gamma"], np.sqrt(old[f"bn_{i}_var"] + EPSILON)
        factor = gamma / sigma
        np.testing.assert_allclose(new[f"conv_{i}_w"], old[f"conv_{i}_w"] * factor[:, None, None, None], rtol=1e-4)
        np.testing.assert_allclose(new[f"bn_{i}_mean"], old[f"bn_{i}_mean"] * factor, rtol=1e-4)
        np.testing.assert_allclose(new[f"bn_{i}_var"] + EPSILON, gamma**2, rtol=1e-4)
        np.testing.assert_allclose(new[f"bn_{i}_gamma"], np.abs(gamma), rtol=1e-4)
        np.testing.assert_array_equal(new[f"bn_{i}_beta"], old[f"bn_{i}_beta"])


def test_true_statistics_stay_true() -> None:
    """Where the running statistics are those of some inputs, they are so afterwards, too."""
    model = ALL_MODELS["mlp_bn"](0)
    weights = _weights(model)
    x = random_input(model, 2, batch=256)["x"]
    y = x @ weights["gemm_0_w"].T + weights["gemm_0_b"]
    for tensor in model.graph.initializer:
        if tensor.name in ("bn_0_mean", "bn_0_var"):
            value = y.mean(axis=0) if tensor.name == "bn_0_mean" else y.var(axis=0)
            tensor.CopyFrom(numpy_helper.from_array(value.astype(np.float32), tensor.name))
    new = _weights(to_model(_scaled(model)[0]))
    z = x @ new["gemm_0_w"].T + new["gemm_0_b"]
    np.testing.assert_allclose(z.mean(axis=0), new["bn_0_mean"], atol=1e-4)
    np.testing.assert_allclose(z.var(axis=0), new["bn_0_var"], rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("value", [0.0, 1e-8, -1e-3])
def test_gammas_near_zero(value: float) -> None:
    """A channel that is switched off stays so; nothing becomes infinite."""
    model = ALL_MODELS["chain_conv"](0)
    for tensor in model.graph.initializer:
        if tensor.name == "bn_0_gamma":
            changed = numpy_helper.to_array(tensor).copy()
            changed[:3] = value
            tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))
    scaled = to_model(_scaled(model)[0])
    assert all(np.isfinite(v).all() for v in _weights(scaled).values())
    feeds = random_input(model, 1)
    np.testing.assert_allclose(run(scaled, feeds)[0], run(model, feeds)[0], atol=1e-3)


def test_without_batch_normalization_nothing_happens() -> None:
    model = ALL_MODELS["chain_conv_plain"](0)
    view, modified = _scaled(model)
    assert not modified
    old, new = _weights(model), _weights(to_model(view))
    assert all(np.array_equal(old[n], new[n]) for n in old)
