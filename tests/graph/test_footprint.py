"""Memory that is counted before a run."""

import numpy as np
from onnx import ModelProto, TensorProto, helper

from onnxfold.graph.files.load import load
from onnxfold.graph.shapes.footprint import Footprint

_WORDS, _WIDTH = 500, 8


def _tied() -> ModelProto:
    """Return a network whose table is stored turned, as a model builder writes it, and gives its scores, too."""
    nodes = [
        helper.make_node("Transpose", ["head"], ["table"], perm=[1, 0]),
        helper.make_node("Gather", ["table", "ids"], ["x"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Relu", ["y"], ["z"]),
        helper.make_node("MatMul", ["z", "head"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["chances"]),
    ]
    weights = {"head": np.ones((_WIDTH, _WORDS)), "w": np.ones((_WIDTH, _WIDTH))}
    graph = helper.make_graph(
        nodes,
        "tied",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["count", "length"])],
        [
            helper.make_tensor_value_info("chances", TensorProto.FLOAT, ["count", "length", _WORDS]),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["count", "length", _WIDTH]),
        ],
        [helper.make_tensor(n, TensorProto.FLOAT, w.shape, w.ravel()) for n, w in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_what_is_computed_of_weights_alone_does_not_grow_with_samples() -> None:
    view, table = load(_tied()), 4 * _WIDTH * _WORDS
    one, four = (Footprint.of(view, {"ids": (count, 10)}) for count in (1, 4))
    assert one.constant == four.constant == table
    assert four.growing == 4 * one.growing
    assert one.count_fitting(2, 2 * table + 100 * 2 * one.growing) == 100
    assert one.count_fitting(2, table) == 0


def test_a_walk_keeps_no_outputs_and_does_not_run_the_last_layer() -> None:
    """Its scores, and what comes behind them, take more than all the rest."""
    view, stream = load(_tied()), 4 * 10 * _WIDTH
    whole, walked = (Footprint.of(view, {"ids": (1, 10)}, walked=walked) for walked in (False, True))
    assert whole.growing == 2 * 4 * 10 * _WORDS + stream  # scores, their softmax, and the other output
    assert walked.growing == 2 * stream
    assert walked.constant == whole.constant
