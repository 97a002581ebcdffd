"""A network with a choice between two bodies."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


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


def choice(*, weights_outside: bool) -> onnx.ModelProto:
    then, other = _branch("then", 0), _branch("other", 1)
    outside = []
    if weights_outside:
        for branch in (then, other):
            outside += list(branch.initializer)
            del branch.initializer[:]
    node = helper.make_node("If", ["flag"], ["y"], "choice", then_branch=then, else_branch=other)
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 4])
    return _model([node], [flag, x], outside)


def nested_choice() -> onnx.ModelProto:
    """The choice inside a branch of another one, behind x' = W2 relu(W1 x); all weights lie in the main graph."""
    inner = choice(weights_outside=True).graph
    shown = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 3])
    around = helper.make_graph(inner.node, "around", [], [shown])
    up = helper.make_node("MatMul", ["x", "w"], ["none"], "up")
    other = helper.make_graph([up], "beside", [], [helper.make_tensor_value_info("none", TensorProto.FLOAT, [None, 3])])
    random = np.random.default_rng(3)
    rows = np.repeat(random.standard_normal((4, 4)), 2, axis=1).astype(np.float32)
    weights = {"first": rows, "second": random.standard_normal((8, 4)).astype(np.float32)}
    weights["w"] = random.standard_normal((4, 3)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["given", "first"], ["a"], "front"),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("MatMul", ["r", "second"], ["x"], "back"),
        helper.make_node("If", ["flag"], ["z"], "outer", then_branch=around, else_branch=other),
        helper.make_node("Identity", ["z"], ["y_out"]),
    ]
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    given = helper.make_tensor_value_info("given", TensorProto.FLOAT, [None, 4])
    stored = [*inner.initializer, *(numpy_helper.from_array(v, name) for name, v in weights.items())]
    return _model(nodes, [flag, given], stored, "y_out")


def _model(
    nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], weights: list[onnx.TensorProto], output: str = "y"
) -> onnx.ModelProto:
    y = helper.make_tensor_value_info(output, TensorProto.FLOAT, [None, 3])
    graph = helper.make_graph(nodes, "g", inputs, [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
