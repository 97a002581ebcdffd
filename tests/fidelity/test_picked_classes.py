"""Scores beside probabilities, and numbers of classes, are answers as scores alone are."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxfold import compare
from onnxfold.errors import ConfigError
from onnxfold.fidelity.measures import accuracy
from onnxfold.graph.run.session import Session
from testing import models


def _behind_scores(*operators: str, keeps_scores: bool = True) -> onnx.ModelProto:
    """Return a classifier that gives its scores and what operators make of them."""
    model = models.residual(0)
    scores = model.graph.output[0].name
    for operator in operators:
        model.graph.node.append(helper.make_node(operator, [scores], [operator.lower()], axis=1))
        kind = TensorProto.INT64 if operator == "ArgMax" else TensorProto.FLOAT
        model.graph.output.append(helper.make_tensor_value_info(operator.lower(), kind, None))
    if not keeps_scores:
        del model.graph.output[0]
    return model


@pytest.mark.parametrize("operators", [(), ("Softmax",), ("ArgMax",), ("Softmax", "ArgMax")])
def test_scores_are_scores_whatever_stands_beside_them(operators: tuple[str, ...]) -> None:
    model = _behind_scores(*operators)
    images = np.random.default_rng(0).standard_normal((32, 3, 8, 8)).astype(np.float32)
    verdict = compare(model, model, {"x": images}).verdict
    assert "class" in str(verdict)
    assert "100%" in str(verdict)


def test_labels_are_compared_with_numbers_of_classes() -> None:
    model = _behind_scores("ArgMax", keeps_scores=False)
    images = np.random.default_rng(0).standard_normal((16, 3, 8, 8)).astype(np.float32)
    answers = Session(model).run({"x": images})
    labels = answers[0].reshape(-1).copy()
    assert accuracy(answers, labels) == 1.0
    labels[:4] += 1
    assert accuracy(answers, labels) == 0.75
    with pytest.raises(ConfigError, match="no output has the shape"):
        accuracy([np.zeros((16, 2, 2), np.int64)], labels)
