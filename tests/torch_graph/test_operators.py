"""Every operator of the torch executor against onnxruntime, node by node."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.files.load import load
from onnxfold.torch_graph.executor import TorchGraph, unsupported_ops
from onnxfold.torch_graph.registry import BUILDERS, operator
from testing.models import Array, run
from testing.rule_models.table import RULE_MODELS
from tests.torch_graph.nodes import NODES, Case


def _model(case: Case) -> tuple[onnx.ModelProto, dict[str, Array]]:
    names, feeds, weights = [], {}, []
    for i, value in enumerate(case.inputs):
        names.append("" if value is None else f"x{i}")
        if isinstance(value, list):
            weights.append(numpy_helper.from_array(value[0], f"x{i}"))
        elif value is not None:
            feeds[f"x{i}"] = value
    outputs = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(case.op, names, outputs, domain=case.domain, **case.attributes)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in feeds.items()
    ]
    graph = helper.make_graph([node], "one", inputs, [helper.make_empty_tensor_value_info(o) for o in outputs], weights)
    opsets = [helper.make_opsetid("", case.opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8 if case.opset < 19 else 10), feeds


@pytest.mark.parametrize("name", NODES)
def test_node(name: str) -> None:
    model, feeds = _model(NODES[name])
    graph = TorchGraph(load(model))
    outputs = graph.run({n: graph.tensor(v) for n, v in feeds.items()}, graph.view.output_names)
    for expected, found in zip(run(model, feeds), outputs.values(), strict=True):
        assert tuple(found.shape) == expected.shape
        # Every float type stands for the graph's own.
        assert found.dtype.is_floating_point == (expected.dtype.kind == "f")
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_every_operator_is_exercised() -> None:
    seen = {(case.domain, case.op) for case in NODES.values()}
    for build in RULE_MODELS.values():
        seen |= {(n.domain, n.op_type) for n in build().graph.node}
    assert {(domain, op_type) for domain, op_type, _ in BUILDERS} <= seen


def test_every_weight_may_also_be_an_input() -> None:
    """Where a form of an operator takes shapes and indices as inputs, computed ones do as well."""
    for name in ("reshape-zero", "gather-negative", "slice-steps", "pad-value", "tile", "resize-linear-sizes", "top-k"):
        case = NODES[name]
        model, feeds = _model(case)
        loose, _ = _model(Case(case.op, case.inputs, case.attributes, case.opset, case.outputs))
        feeds |= {w.name: numpy_helper.to_array(w) for w in loose.graph.initializer}
        for weight in loose.graph.initializer:
            loose.graph.input.append(helper.make_tensor_value_info(weight.name, weight.data_type, list(weight.dims)))
        del loose.graph.initializer[:]
        graph = TorchGraph(load(loose))
        outputs = graph.run({n: graph.tensor(v) for n, v in feeds.items()}, ["y0"])
        np.testing.assert_allclose(outputs["y0"].numpy(), run(model, {n: feeds[n] for n in feeds if n in
            {i.name for i in model.graph.input}})[0], rtol=1e-4, atol=1e-5)  # fmt: skip


@pytest.mark.parametrize(
    ("op", "attributes", "inputs", "words"),
    [
        ("MaxPool", {"kernel_shape": [2, 2]}, [(1, 2, 4, 4)], "places of the maxima"),
        ("Resize", {"mode": "linear", "antialias": 1}, [(1, 2, 4, 4)], "smooths"),
        ("NonZero", {}, [(2, 2)], "no differentiable form"),
        ("BatchNormalization", {"training_mode": 1}, [(2, 3), (3,), (3,), (3,), (3,)], "training mode"),
    ],
)
def test_what_is_not_covered_is_named(
    op: str, attributes: dict[str, object], inputs: list[tuple[int, ...]], words: str
) -> None:
    names = [f"x{i}" for i in range(len(inputs))]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in zip(names, inputs, strict=True)]
    outputs = ["y", "places"] if op == "MaxPool" else ["y"]
    graph = helper.make_graph(
        [helper.make_node(op, names, outputs, name="the_node", **attributes)],
        "one", infos, [helper.make_empty_tensor_value_info(o) for o in outputs],
    )  # fmt: skip
    view = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))
    (reason,) = unsupported_ops(view)
    assert "the_node" in reason
    assert op in reason
    assert words in reason
    with pytest.raises(UnsupportedModelError, match="the_node"):
        TorchGraph(view)


def test_a_version_is_registered_once() -> None:
    with pytest.raises(ValueError, match="already has a builder"):
        operator("Slice", since=10)(lambda node: torch.relu)
    assert BUILDERS.find("", "Slice", 9) is not BUILDERS.find("ai.onnx", "Slice", 10)
    assert BUILDERS.find("", "TopK", 9) is None


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_quantisation_has_a_scale_per_entry_of_an_axis(axis: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 3, 3)).astype(np.float32)
    constants = {
        "scale": np.array([0.01, 0.02, 0.05], np.float32),
        "zero": np.array([-3, 0, 5], np.int8),
    }
    nodes = [
        helper.make_node(op, [source, "scale", "zero"], [result], axis=axis)
        for op, source, result in (("QuantizeLinear", "x", "q"), ("DequantizeLinear", "q", "y"))
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, x.shape)],
        [numpy_helper.from_array(values, name) for name, values in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = TorchGraph(load(model)).run({"x": torch.from_numpy(x)}, ["y"])["y"].numpy()
    np.testing.assert_allclose(found, run(model, {"x": x})[0], rtol=1e-5, atol=1e-6)
