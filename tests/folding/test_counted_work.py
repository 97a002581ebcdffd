"""What a small fold costs, counted: sessions, inferences of types, multiply-accumulates, and bytes of results."""

from collections import Counter
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import NodeProto

from onnxfold.graph.files.load import load
from onnxfold.graph.shapes import shape_inference
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.statistics.activations import Activations
from testing.models import ALL_MODELS, random_input
from testing.quick import quick_fold

#: What a fold makes; a change may add a fifth of it.
MOST = {"chain_conv": (14, 20), "mlp": (22, 16), "residual": (17, 20), "concat_net": (17, 20)}
#: Multiply-accumulates and bytes of results that a fold without verification has onnxruntime compute: how many runs of
#: the network on the fold's inputs have as many. A change may add a fifth of it.
WORK = {"chain_conv": (4.5, 4.7), "mlp": (4.3, 4.6), "residual": (4.8, 5.0), "concat_net": (4.5, 4.8)}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count sessions and inferences."""
    counts: Counter[str] = Counter()
    session, infer = ort.InferenceSession, onnx.shape_inference.infer_shapes

    def open_session(*args: Any, **options: Any) -> ort.InferenceSession:
        counts["sessions"] += 1
        return session(*args, **options)

    def infer_shapes(*args: Any, **options: Any) -> onnx.ModelProto:
        counts["inferences"] += 1
        return infer(*args, **options)

    monkeypatch.setattr(ort, "InferenceSession", open_session)
    monkeypatch.setattr(shape_inference.onnx.shape_inference, "infer_shapes", infer_shapes)
    return counts


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the arithmetic of runs, and the bytes of their results."""
    counts: Counter[str] = Counter()
    session = ort.InferenceSession

    def open_session(model: Any, *args: Any, **options: Any) -> ort.InferenceSession:
        opened = session(model, *args, **options)
        view, run = load(onnx.load_from_string(model) if isinstance(model, bytes) else Path(model)), opened.run

        def counted_run(names: list[str] | None, feeds: Mapping[str, Array], *others: Any) -> list[Array]:
            results: list[Array] = run(names, feeds, *others)
            counts["macs"] += _macs(view, _shapes(view, {name: np.shape(values) for name, values in feeds.items()}))
            counts["bytes"] += sum(values.nbytes for values in results)
            return results

        opened.run = counted_run
        return opened

    monkeypatch.setattr(ort, "InferenceSession", open_session)
    return counts


def _shapes(view: GraphView, feeds: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model's tensors, weights among them, for inputs of some shapes."""
    known = {name: shape for name, kind in view.types_for(feeds).items() if (shape := kind[1]) is not None}
    known |= {name: view.weights[name].shape for name in view.weights}
    return {name: tuple(length or 0 for length in shape) for name, shape in known.items()}


def _macs(view: GraphView, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Count the multiply-accumulates of convolutions and products of matrices."""
    per_result: dict[str, Callable[[NodeProto], int]] = {
        "Conv": lambda node: prod(shapes[node.input[1]][1:]),
        "MatMul": lambda node: shapes[node.input[0]][-1],
        "Gemm": lambda node: shapes[node.input[0]][-1],  # none here has transA
    }
    return sum(prod(shapes[n.output[0]]) * per_result[n.op_type](n) for n in view.nodes if n.op_type in per_result)


@pytest.mark.parametrize("name", MOST)
def test_a_small_fold_opens_few_sessions_and_infers_types_seldom(name: str, made: Counter[str]) -> None:
    quick_fold(ALL_MODELS[name](0), 0.3)
    sessions, inferences = MOST[name]
    assert made["sessions"] <= 1.2 * sessions
    assert made["inferences"] <= 1.2 * inferences


@pytest.mark.parametrize("name", WORK)
def test_a_fold_runs_and_makes_little(name: str, runs: Counter[str]) -> None:
    model = ALL_MODELS[name](0)
    view = load(model)
    shapes = _shapes(view, {"x": (16, *random_input(model, 0)["x"].shape[1:])})
    macs, made = _macs(view, shapes), sum(4 * prod(shapes[name]) for node in view.nodes for name in node.output)
    quick_fold(model, 0.3, samples=16, verify=False)
    most_macs, most_bytes = WORK[name]
    assert 0 < runs["macs"] <= 1.2 * most_macs * macs
    assert 0 < runs["bytes"] <= 1.2 * most_bytes * made


def test_types_are_inferred_once_for_the_same_shapes_until_an_edit(made: Counter[str]) -> None:
    view = load(ALL_MODELS["residual"](0))
    shapes = {"x": (5, 3, 8, 8)}
    types = view.types_for(shapes)
    assert types["relu_0_out"][1] == (5, 8, 8, 8)
    assert view.copy().types_for(shapes) == types
    assert made["inferences"] == 1
    view.set_weight("conv_0_w", np.zeros((4, 3, 3, 3)))
    assert view.types_for(shapes)["conv_0_out"][1] == (5, 4, 8, 8)
    for batch in range(2, 40):  # as texts that grow: only some are kept
        view.types_for({"x": (batch, 3, 8, 8)})
    assert len(view._types) <= 8


def test_walks_of_copies_share_the_sessions_of_nodes(made: Counter[str]) -> None:
    model = ALL_MODELS["chain_conv"](0)
    view, feeds = load(model), random_input(model, 0)
    opened = []
    for graph in (view, view.copy()):
        walk = Activations(graph, [feeds])
        for node in walk.walk():
            walk.run(node)
        opened.append(walk.sessions.opened)
    assert opened[1] < opened[0] / 2
