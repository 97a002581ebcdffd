"""Bodies of If are folded inside; what crosses their border stays."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxfold import api
from tests.models import run
from tests.quick import quick_fold


def _branch(name: str, seed: int, hidden: int = 8) -> onnx.GraphProto:
    """y = W2 relu(W1 x), the hidden units in equal pairs, weights stored inside the branch."""
    random = np.random.default_rng(seed)
    rows = np.repeat(random.standard_normal((4, hidden // 2)), 2, axis=1).astype(np.float32)
    columns = random.standard_normal((hidden, 3)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", f"{name}_w1"], [f"{name}_a"], f"{name}_up"),
        helper.make_node("Relu", [f"{name}_a"], [f"{name}_r"], f"{name}_relu"),
        helper.make_node("MatMul", [f"{name}_r", f"{name}_w2"], [f"{name}_y"], f"{name}_down"),
    ]
    out = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [None, 3])
    weights = [numpy_helper.from_array(rows, f"{name}_w1"), numpy_helper.from_array(columns, f"{name}_w2")]
    return helper.make_graph(nodes, name, [], [out], weights)


def _model(*, weights_outside: bool) -> onnx.ModelProto:
    then, other = _branch("then", 0), _branch("other", 1)
    outside = []
    if weights_outside:
        for branch in (then, other):
            outside += list(branch.initializer)
            del branch.initializer[:]
    node = helper.make_node("If", ["flag"], ["y"], "choice", then_branch=then, else_branch=other)
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 3])
    graph = helper.make_graph([node], "g", [flag, x], [y], outside)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _outputs(model: onnx.ModelProto) -> list[np.ndarray]:
    x = np.random.default_rng(2).standard_normal((5, 4)).astype(np.float32)
    return [run(model, {"flag": np.array(flag), "x": x})[0] for flag in (True, False)]


def test_both_branches_are_folded_without_loss() -> None:
    for weights_outside in (False, True):
        model = _model(weights_outside=weights_outside)
        before = model.SerializeToString()
        result = quick_fold(model, channel_ratio=0.5)
        assert [(g.width, g.folded_width) for g in result.report.groups] == [(8, 4), (8, 4)]
        assert result.report.sparsity == 0.5
        for a, b in zip(_outputs(model), _outputs(result.model), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
        assert model.SerializeToString() == before


def test_a_sparsity_is_met_over_all_bodies() -> None:
    assert abs(quick_fold(_model(weights_outside=False), 0.25).report.sparsity - 0.25) <= 0.01


def test_inspect_counts_the_bodies() -> None:
    found = api.inspect_model(_model(weights_outside=False))
    assert found.share.either == 1.0
    assert {r.node for r in found.refusals} == {"then_up", "then_down", "other_up", "other_down"}
    assert any("model's input 'x'" in r.reason for r in found.refusals)


def test_weights_read_by_both_branches_stay() -> None:
    """The same matrix in two bodies would have to be cut alike in both: it is left alone, with a reason."""
    model = _model(weights_outside=True)
    for attr in model.graph.node[0].attribute:
        attr.g.node[0].input[1] = "then_w1"
    result = api.inspect_model(model)
    assert result.groups == []
    assert any("then_w1" in r.reason for r in result.refusals)
