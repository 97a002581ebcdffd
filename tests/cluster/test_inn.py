"""Resampled channels of integral neural networks."""

from itertools import combinations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import onnxfold
from onnxfold.cluster.clusterings.inn import smooth_path
from testing.graph_builder import GraphBuilder
from testing.models import ALL_MODELS


@settings(max_examples=40)
@given(seed=st.integers(0, 2**16), n=st.sampled_from([1, 2, 3, 4, 9]))
def test_no_exchange_of_two_edges_makes_the_path_shorter(seed: int, n: int) -> None:
    points = np.random.default_rng(seed).standard_normal((n, 2))
    path = smooth_path(points @ points.T)
    assert sorted(path.tolist()) == list(range(n))

    def length(order: np.ndarray) -> float:
        return float(np.linalg.norm(np.diff(points[order], axis=0), axis=1).sum())

    for i, j in combinations(range(n + 1), 2):
        other = np.concatenate([path[:i], path[i:j][::-1], path[j:]])
        assert length(path) <= length(other) + 1e-6


def _smooth(order: np.ndarray) -> onnx.ModelProto:
    """Return a model whose hidden channels lie on a line, in some order, and are added up."""
    graph = GraphBuilder("smooth", 0, (3,))
    rows = np.array([1.0, 2.0, 0.5]) + order[:, None] * np.array([0.3, 0.1, 0.2])
    weight = graph.constant("w", rows.astype(np.float32))
    hidden = graph.node("Gemm", ["x", weight], (len(order),), transB=1)
    hidden = graph.unary("Relu", hidden)
    columns = graph.constant("v", np.tile(np.array([[2.0, -1.0]], np.float32), (len(order), 1)))
    graph.outputs = [graph.node("Gemm", [hidden, columns], (2,), transB=0)]
    return graph.build()


def _run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


@pytest.mark.parametrize("ratio", [0.1, 0.25, 0.5, 0.9])
def test_channels_on_a_line_are_resampled_exactly(ratio: float) -> None:
    model = _smooth(np.random.default_rng(1).permutation(20))
    folded = onnxfold.fold(model, channel_ratio=ratio, method="inn", allocation="uniform", verify=False)
    assert folded.report.after.parameters < folded.report.before.parameters
    x = np.random.default_rng(2).uniform(0, 1, (5, 3)).astype(np.float32)
    np.testing.assert_allclose(_run(folded.model, x), _run(model, x), rtol=1e-5)


@pytest.mark.parametrize("name", ALL_MODELS)
def test_networks_of_all_kinds_are_resampled(name: str) -> None:
    report = onnxfold.fold(ALL_MODELS[name](0), channel_ratio=0.4, method="inn", allocation="uniform").report
    assert any(group.folded_width < group.width for group in report.groups)
