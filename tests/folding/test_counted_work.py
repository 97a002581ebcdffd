"""What a small fold costs beside its arithmetic: sessions of onnxruntime and inferences of types, counted."""

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxfold.graph.files.load import load
from onnxfold.graph.shapes import shape_inference
from onnxfold.statistics.activations import Activations
from testing.models import ALL_MODELS, random_input
from testing.quick import quick_fold

#: What a fold makes; a change may add a fifth of it.
MOST = {"chain_conv": (14, 20), "mlp": (22, 16), "residual": (17, 20), "concat_net": (17, 20)}


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


@pytest.mark.parametrize("name", MOST)
def test_a_small_fold_opens_few_sessions_and_infers_types_seldom(name: str, made: Counter[str]) -> None:
    quick_fold(ALL_MODELS[name](0), 0.3)
    sessions, inferences = MOST[name]
    assert made["sessions"] <= 1.2 * sessions
    assert made["inferences"] <= 1.2 * inferences


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
