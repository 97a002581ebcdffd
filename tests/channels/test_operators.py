"""What rules declare of an operator is what onnxruntime computes."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from onnxfold.budget.costs.running import count_macs
from onnxfold.channels.context import all_rules
from onnxfold.channels.group import move_from_front, move_to_front
from onnxfold.channels.layers import Layer, find_layers
from onnxfold.graph.files.load import load
from onnxfold.graph.view import GraphView
from testing.models import run

Array = NDArray[Any]
Shapes = dict[str, tuple[int, ...]]

#: Operator, attributes, shapes of inputs, shapes of weights, multiply-accumulates, whether rows and bias scale results.
CASES: dict[str, tuple[str, dict[str, Any], Shapes, Shapes, int, bool]] = {
    "conv": ("Conv", {"strides": [2, 1]}, {"x": (1, 3, 5, 4)}, {"w": (4, 3, 2, 2), "b": (4,)}, 4 * 2 * 3 * 12, True),
    "conv-grouped": ("Conv", {"group": 2}, {"x": (1, 4, 5)}, {"w": (6, 2, 3), "b": (6,)}, 6 * 3 * 6, True),
    "conv-without-bias": ("Conv", {}, {"x": (1, 3, 5)}, {"w": (4, 3, 2)}, 4 * 4 * 6, True),
    "transposed": ("ConvTranspose", {}, {"x": (1, 4, 5)}, {"w": (4, 3, 2), "b": (3,)}, 20 * 6, True),
    "transposed-grouped": ("ConvTranspose", {"group": 2}, {"x": (1, 4, 5)}, {"w": (4, 3, 2), "b": (6,)}, 20 * 6, True),
    "transposed-depthwise": (
        "ConvTranspose",
        {"group": 4},
        {"x": (1, 4, 5)},
        {"w": (4, 2, 2), "b": (8,)},
        20 * 4,
        True,
    ),
    "gemm": ("Gemm", {"alpha": 0.5, "beta": 2.0}, {"x": (1, 3)}, {"w": (3, 4), "b": (4,)}, 12, True),
    "gemm-transposed": ("Gemm", {"transA": 1, "transB": 1}, {"x": (3, 2)}, {"w": (4, 3), "b": (1, 4)}, 24, True),
    "gemm-scalar-bias": ("Gemm", {}, {"x": (1, 3)}, {"w": (3, 4), "b": (1,)}, 12, False),
    "gemm-left": ("Gemm", {"transA": 1}, {"w": (3, 4), "x": (3, 2)}, {"w": (3, 4)}, 24, True),
    "matmul": ("MatMul", {}, {"x": (1, 2, 3)}, {"w": (3, 4)}, 24, True),
    "matmul-left": ("MatMul", {}, {"w": (4, 3), "x": (1, 3, 2)}, {"w": (4, 3)}, 24, True),
    "fused-matmul": ("FusedMatMul", {"alpha": 0.5}, {"x": (1, 2, 3)}, {"w": (3, 4)}, 24, True),
    "fused-conv": ("FusedConv", {"activation": "Tanh"}, {"x": (1, 3, 5)}, {"w": (4, 3, 2), "b": (4,)}, 96, False),
    "fused-gemm": ("FusedGemm", {"activation": "Tanh"}, {"x": (1, 3)}, {"w": (3, 4), "b": (4,)}, 12, False),
}


def view_of(case: str) -> tuple[GraphView, Array]:
    """Return a graph of one node, and its input."""
    op, attributes, inputs, weights, _, _ = CASES[case]
    random = np.random.default_rng(0)
    names = [*inputs, *(name for name in weights if name not in inputs)]
    domain = "com.microsoft" if op.startswith("Fused") else ""
    tensors = [numpy_helper.from_array(random.standard_normal(s).astype(np.float32), n) for n, s in weights.items()]
    rank = {"Gemm": 2, "FusedGemm": 2}.get(op, len(inputs["x"]))
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], domain=domain, **attributes)],
        case,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, inputs["x"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * rank)],
        tensors,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    x = random.standard_normal(inputs["x"]).astype(np.float32)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    y = run(model, {"x": x})[0]
    for dim, size in zip(model.graph.output[0].type.tensor_type.shape.dim, y.shape, strict=True):
        dim.dim_value = size
    return load(model), x


def results(view: GraphView, x: Array) -> Array:
    model = onnx.ModelProto()
    model.CopyFrom(view.model)
    model.graph.initializer.extend(numpy_helper.from_array(view.weight(n), n) for n in view.weights)
    return run(model, {"x": x})[0]


@pytest.mark.parametrize("case", CASES)
def test_rows_and_bias_are_those_of_the_channels(case: str) -> None:
    """Scaled together they scale the channels of a plain layer, each by its own factor."""
    view, x = view_of(case)
    (layer,) = find_layers(view)
    assert layer.is_plain == CASES[case][5]
    y = results(view, x)
    axis = layer.operator.channel_axis % y.ndim
    assert layer.width(view) == y.shape[axis]
    gain = np.linspace(0.5, 2.0, y.shape[axis]).astype(np.float32)
    rows = layer.rows
    front = move_to_front(view.weight(rows.tensor), rows.axis, rows.blocks)
    scaled = front * gain.reshape(-1, *[1] * (front.ndim - 1))
    view.set_weight(rows.tensor, np.ascontiguousarray(move_from_front(scaled, rows.axis, rows.blocks)))
    if layer.bias:
        old = view.weight(layer.bias)
        view.set_weight(layer.bias, (old.reshape(-1) * gain).reshape(old.shape))
    expected = y * gain.reshape([-1 if i == axis else 1 for i in range(y.ndim)])
    assert np.allclose(results(view, x), expected, atol=1e-5) == layer.is_plain


@pytest.mark.parametrize("case", CASES)
def test_products_are_the_multiply_accumulates(case: str) -> None:
    view, _ = view_of(case)
    assert count_macs(view) == CASES[case][4]


@pytest.mark.parametrize("name", ["transA", "transB", "transBatchA"])
def test_axes_of_transposed_products_are_not_followed(name: str) -> None:
    node = helper.make_node("FusedMatMul", ["x", "w"], ["y"], domain="com.microsoft", **{name: 1})
    graph = helper.make_graph(
        [node],
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3, 3))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 3)],
        [numpy_helper.from_array(np.ones((3, 3), np.float32), "w")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    assert not list(find_layers(load(helper.make_model(graph, opset_imports=opsets, ir_version=8))))


@pytest.mark.parametrize("case", ["conv-without-bias", "matmul", "matmul-left", "fused-matmul"])
@pytest.mark.parametrize("first", [True, False], ids=["constant-first", "constant-last"])
def test_a_vector_that_the_node_behind_adds_is_the_bias(case: str, first: bool) -> None:
    view, _ = view_of(case)
    (layer,) = find_layers(view)
    ones = np.ones([layer.width(view)] + [1] * (view_rank(view) - 1 - axis_of(layer, view)), np.float32)
    for values, is_bias in ((ones, True), (np.ones(view.shape("y") or (), np.float32), False)):
        model = onnx.ModelProto()
        model.CopyFrom(view.model)
        model.graph.initializer.extend(numpy_helper.from_array(view.weight(n), n) for n in view.weights)
        model.graph.initializer.append(numpy_helper.from_array(values, "added"))
        model.graph.node.append(helper.make_node("Add", ["added", "y"] if first else ["y", "added"], ["z"]))
        model.graph.output[0].name = "z"
        (found,) = find_layers(load(model))
        assert (found.bias, found.output) == (("added", "z") if is_bias else ("", "y"))


def view_rank(view: GraphView) -> int:
    return len(view.shape("y") or ())


def axis_of(layer: Layer, view: GraphView) -> int:
    return layer.operator.channel_axis % view_rank(view)


def test_nobody_but_rules_knows_a_layer_by_its_name() -> None:
    """Merges, repairs, diagnosis, budgets and shares ask for what rules declare."""
    names = {rule.op_type for _, rule in all_rules() if rule.computes is not None}
    package = Path(onnxfold.__file__).parent
    rooms = ["channels", "statistics", "cluster", "budget", "folding", "passes/merge", "passes/repair"]
    modules = [m for room in rooms for m in (package / room).rglob("*.py") if "rules" not in m.parts]
    assert len(modules) > 50
    for module in modules:
        strings = {n.value for n in ast.walk(ast.parse(module.read_text("utf-8"))) if isinstance(n, ast.Constant)}
        assert not strings & names, module
