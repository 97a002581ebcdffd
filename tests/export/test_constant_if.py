"""If with a constant condition, before an export: the branch that is taken stands in its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfold.errors import ExportError
from onnxfold.export import to_tflite
from onnxfold.export.fusion import PREPARE
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.passes.normalize.branches import TakeBranches
from onnxfold.passes.normalize.constants import FoldConstants
from testing.models import run


def _array(name: str, values: Any, dtype: Any = np.float32) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, dtype), name)


def _branch(op: str, value: float, source: str = "x") -> onnx.GraphProto:
    """Both branches use the same names inside."""
    nodes = [helper.make_node(op, [source, "factor"], ["inner"]), helper.make_node("Relu", ["inner"], ["result"])]
    result = helper.make_tensor_value_info("result", TensorProto.FLOAT, None)
    return helper.make_graph(nodes, op, [], [result], [_array("factor", [value] * 3)])


def _constant() -> onnx.GraphProto:
    """A branch whose output is a weight of its own."""
    result = helper.make_tensor_value_info("fixed", TensorProto.FLOAT, None)
    return helper.make_graph([], "constant", [], [result], [_array("fixed", np.ones((2, 3)))])


def _two(conditions: tuple[bool, bool], first: Any, second: Any) -> onnx.ModelProto:
    """An If behind an If, with the same names in all branches."""
    nodes = [
        helper.make_node("If", ["c0"], ["middle"], "if_0", then_branch=first[0], else_branch=first[1]),
        helper.make_node("If", ["c1"], ["y"], "if_1", then_branch=second[0], else_branch=second[1]),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in ("x", "y")]
    stored = [_array(f"c{i}", condition, np.bool_) for i, condition in enumerate(conditions)]
    graph = helper.make_graph(nodes, "ifs", ends[:1], ends[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _nested() -> tuple[onnx.GraphProto, onnx.GraphProto]:
    """A branch that holds a further If on a constant of its own, which reads what the branch computes."""
    inner = [_branch("Mul", 3.0, "shifted"), _branch("Sub", 1.0, "shifted")]
    nodes = [
        helper.make_node("Add", ["x", "shift"], ["shifted"]),
        helper.make_node("If", ["c"], ["result"], "inside", then_branch=inner[0], else_branch=inner[1]),
    ]
    stored = [_array("shift", [0.5] * 3), _array("c", True, np.bool_)]
    result = helper.make_tensor_value_info("result", TensorProto.FLOAT, None)
    return helper.make_graph(nodes, "nested", [], [result], stored), _branch("Add", 9.0)


PAIR = (_branch("Mul", 2.0), _branch("Add", 1.0))
MODELS = {
    "then, else": _two((True, False), PAIR, (_branch("Sub", 1.0, "middle"), _branch("Add", 0.25, "middle"))),
    "same names": _two((True, True), PAIR, (_branch("Mul", 0.5, "middle"), PAIR[1])),
    "nested": _two((True, False), _nested(), (PAIR[0], _branch("Add", 0.25, "middle"))),
    "a weight": _two((True, False), PAIR, (PAIR[0], _constant())),
}


@pytest.mark.parametrize("name", MODELS)
def test_outputs_stay_and_no_if_is_left(name: str) -> None:
    model = MODELS[name]
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)}
    view = load(model)
    take = TakeBranches(FoldConstants())
    take(view)
    assert not [node for node in view.nodes if node.op_type == "If"]
    inlined = to_model(view)
    onnx.checker.check_model(inlined, full_check=True)
    np.testing.assert_array_equal(run(inlined, feeds)[0], run(model, feeds)[0])
    assert not take(view).modified


def test_the_other_branch_may_be_one_that_cannot_be_exported(tmp_path: Path) -> None:
    """The file is compared with onnxruntime before it is written."""
    unknown = helper.make_graph(
        [helper.make_node("Acosh", ["x"], ["result"])], "unknown", [],
        [helper.make_tensor_value_info("result", TensorProto.FLOAT, None)],
    )  # fmt: skip
    model = _two((True, True), (PAIR[0], PAIR[1]), (_branch("Mul", 0.5, "middle"), unknown))
    assert to_tflite(model, tmp_path / "net.tflite").exists()
    PREPARE(load(model))


def test_a_condition_that_is_computed_stays_and_is_refused(tmp_path: Path) -> None:
    model = _two((True, True), PAIR, (_branch("Mul", 0.5, "middle"), _branch("Add", 0.25, "middle")))
    model.graph.node.insert(0, helper.make_node("ReduceMax", ["x"], ["largest"], keepdims=0))
    model.graph.node.insert(1, helper.make_node("Cast", ["largest"], ["decided"], to=TensorProto.BOOL))
    model.graph.node[2].input[0] = "decided"
    with pytest.raises(ExportError, match="If 'if_0'"):
        to_tflite(model, tmp_path / "net.tflite")
