"""What outputs make of an error of a table's rows, direction by direction."""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from onnxfold.folding.methods import find_method
from onnxfold.folding.open_model import GraphForm, Opening, open_model
from onnxfold.folding.prepare import prepare
from onnxfold.folding.probes.output_metric import output_metrics
from onnxfold.inputs.tokens.answers import Answers
from onnxfold.progress import silent
from testing.inputs import model_inputs

WORDS, WIDTH, OUT = 80, 6, 9
RANDOM = np.random.default_rng(0)
TABLE = RANDOM.standard_normal((WORDS, WIDTH)).astype(np.float32)
MATRIX = (RANDOM.standard_normal((WIDTH, OUT)) * np.geomspace(1.0, 0.05, WIDTH)[:, None]).astype(np.float32)


def _model(matrix: NDArray[np.float32]) -> onnx.ModelProto:
    """Rows of a table, 1 added, times a matrix."""
    weights = [("table", TABLE), ("one", np.ones(WIDTH, np.float32)), ("matrix", matrix)]
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"], "look_up"),
        helper.make_node("Add", ["rows", "one"], ["more"], "add"),
        helper.make_node("MatMul", ["more", "matrix"], ["y"], "product"),
    ]
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "length", matrix.shape[1]])
    graph = helper.make_graph(nodes, "g", [ids], [result], [numpy_helper.from_array(v, n) for n, v in weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _metric(model: onnx.ModelProto) -> NDArray[np.float64]:
    opened = open_model(model, {}, silent, Opening(GraphForm(tables=True)))
    inputs = model_inputs(opened.view, "auto", seed=0)
    (graph,) = prepare(opened, find_method("fold-ls"), inputs, 0).graphs
    (metric,) = output_metrics(graph, silent).values()
    return metric


def test_a_linear_network_has_the_metric_of_its_matrix() -> None:
    expected = MATRIX @ MATRIX.T * (WIDTH / np.trace(MATRIX @ MATRIX.T))
    np.testing.assert_allclose(_metric(_model(MATRIX)), expected + 1e-3 * np.eye(WIDTH), atol=1e-3)


def test_scores_count_by_the_divergence_of_what_they_stand_for() -> None:
    """Directions are ordered as the divergence orders them, and not as the scores change."""
    matrix = np.random.default_rng(1).standard_normal((WIDTH, WORDS)).astype(np.float32)
    matrix[0] = 30.0  # changes all scores alike, which is no change of any probability
    found = np.diag(_metric(_model(matrix)))
    scores = (TABLE + 1.0) @ matrix
    losses = np.array([Answers(scores).divergence(scores + 1e-2 * matrix[i]) for i in range(WIDTH)])
    expected = losses * (WIDTH / losses.sum())
    assert found[0] < 0.01
    np.testing.assert_allclose(found[1:], expected[1:], rtol=0.4)
