"""Constant factors and summands behind convolutions are merged into them, where that changes nothing but rounding."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.passes.normalize.affine import MergeAffine
from testing.models import ALL_MODELS, random_input, run
from tests.export_forms import frozen_norms

CHANNELS = 4
PER_CHANNEL = np.linspace(0.5, 2.0, CHANNELS, dtype=np.float32).reshape(-1, 1, 1)
#: Nodes behind a convolution that writes `a`, the last of which writes `y`, and the operators that are left.
BEHIND: dict[str, tuple[list[tuple[str, list[str]]], list[str]]] = {
    "a factor for all": ([("Mul", ["a", "two"])], ["Conv"]),
    "a factor per channel": ([("Mul", ["per_channel", "a"])], ["Conv"]),
    "a divisor": ([("Div", ["a", "per_channel"])], ["Conv"]),
    "a whole normalisation": (
        [("Sub", ["a", "per_channel"]), ("Div", ["b0", "two"]), ("Mul", ["b1", "per_channel"]), ("Add", ["two", "b2"])],
        ["Conv"],
    ),
    "a bias alone, which is the layer's": ([("Add", ["a", "per_channel"])], ["Conv", "Add"]),
    "divided by it": ([("Mul", ["a", "two"]), ("Div", ["two", "b0"])], ["Conv", "Div"]),
    "a factor per column": ([("Mul", ["a", "per_column"])], ["Conv", "Mul"]),
    "a factor of zero": ([("Mul", ["a", "zero"])], ["Conv", "Mul"]),
    "read twice": ([("Mul", ["a", "two"]), ("Add", ["b0", "a"])], ["Conv", "Mul", "Add"]),
    "by itself": ([("Mul", ["a", "a"])], ["Conv", "Mul"]),
}


def _model(behind: list[tuple[str, list[str]]], operator: str = "Conv", groups: int = 1) -> onnx.ModelProto:
    outputs = [*(f"b{i}" for i in range(len(behind) - 1)), "y"]
    shape = (CHANNELS, 4 // groups, 3, 3) if operator == "Conv" else (4, CHANNELS // groups, 3, 3)
    random = np.random.default_rng(0)
    weights: dict[str, Any] = {
        "w": random.standard_normal(shape), "bias": random.standard_normal(CHANNELS), "two": np.array(2.0),
        "zero": np.array(0.0), "per_channel": PER_CHANNEL, "per_column": np.arange(1.0, 7.0),
    }  # fmt: skip
    nodes = [helper.make_node(operator, ["x", "w", "bias"], ["a"], pads=[1, 1, 1, 1], group=groups)]
    nodes += [helper.make_node(name, inputs, [o]) for (name, inputs), o in zip(behind, outputs, strict=True)]
    read = {name for node in nodes for name in node.input}
    inits = [numpy_helper.from_array(np.asarray(v, np.float32), n) for n, v in weights.items() if n in read]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 4, 6, 6]) for n in ("x", "y"))
    graph = helper.make_graph(nodes, "g", [x], [y], inits)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _merged(model: onnx.ModelProto) -> list[str]:
    """Return the operators that are left; the outputs are the same."""
    view = load(model)
    MergeAffine()(view)
    after = to_model(view)
    onnx.checker.check_model(after, full_check=True)
    feeds = random_input(model, 0)
    for was, is_now in zip(run(model, feeds), run(after, feeds), strict=True):
        np.testing.assert_allclose(is_now, was, rtol=1e-5, atol=1e-5 * np.abs(was).max())
    return [node.op_type for node in view.nodes]


@pytest.mark.parametrize("name", BEHIND)
def test_what_is_merged(name: str) -> None:
    behind, left = BEHIND[name]
    assert _merged(_model(behind)) == left


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
def test_groups_and_transposed_convolutions(operator: str, groups: int) -> None:
    assert _merged(_model(BEHIND["a whole normalisation"][0], operator, groups)) == [operator]


def test_a_weight_of_two_convolutions_is_not_scaled() -> None:
    model = _model(BEHIND["a factor per channel"][0])
    model.graph.node.append(helper.make_node("Conv", ["x", "w", "bias"], ["z"], pads=[1, 1, 1, 1]))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["N", 4, 6, 6]))
    assert _merged(model) == ["Conv", "Mul", "Conv"]


def test_what_is_given_out_stays() -> None:
    model = _model(BEHIND["a factor for all"][0])
    model.graph.output.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, ["N", 4, 6, 6]))
    assert _merged(model) == ["Conv", "Mul"]


def test_a_network_with_frozen_normalisations_folds_as_one_without() -> None:
    model = frozen_norms(ALL_MODELS["residual"](0))
    view = load(model)
    MergeAffine()(view)
    options: dict[str, Any] = {"channel_ratio": 0.5, "samples": 32, "inputs": "noise", "cache": None}
    folded = [onnxfold.fold(each, **options) for each in (model, to_model(view))]
    counts = [[node.op_type for node in result.model.graph.node].count("Mul") for result in folded]
    assert counts == [0, 0]
    feeds = random_input(model, 1)
    np.testing.assert_allclose(*(run(result.model, feeds)[0] for result in folded), rtol=1e-3, atol=1e-4)
