"""Images that a graph brings into shape are drawn, inverted, mirrored and varied as images."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from onnxfold.config import FoldConfig
from onnxfold.folding.after.refine_samples import draw_samples
from onnxfold.folding.inputs.choose_inputs import prepare_inputs
from onnxfold.graph.files.load import load
from onnxfold.graph.run.session import Session
from onnxfold.inputs.images.image_form import image_form
from onnxfold.inputs.images.synthetic import describe_inputs, synthetic_inputs
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.inputs.sample_kinds import DATA
from testing.models import ALL_MODELS, chain_conv

Dims = tuple[int | str, ...]
_TO_PIXELS = helper.make_node("Div", ["x", "bytes"], ["scaled"])


def _reshape(source: str = "x", target: str = "shape") -> NodeProto:
    return helper.make_node("Reshape", [source, target], ["z"])


def _behind(nodes: list[NodeProto], dims: Dims, *, bn: bool = False, **constants: Any) -> onnx.ModelProto:
    """Return a network of images of 3 x 8 x 8 behind nodes from 'x' to 'z'."""
    model = chain_conv(0, bn=bn)
    graph, old = model.graph, list(model.graph.node)
    old[0].input[0] = "z"
    del graph.node[:], graph.input[:]
    graph.node.extend([*nodes, *old])
    graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, dims))
    constants = {"shape": np.array([-1, 3, 8, 8]), "axes": np.array([1]), **constants}
    used = {name for node in nodes for name in node.input}
    graph.initializer.extend(numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items() if n in used)
    return model


FORMS: dict[str, tuple[list[NodeProto], Dims]] = {
    "flat": ([_reshape()], ("n", 192)),
    "flat, batch of two": ([_reshape()], (2, 192)),
    "frames of one": ([helper.make_node("Squeeze", ["x", "axes"], ["z"])], ("n", 1, 3, 8, 8)),
    "no batch": ([_reshape()], (3, 8, 8)),
    "two reshapes": (
        [helper.make_node("Squeeze", ["x", "axes"], ["first"]), _reshape("first")],
        ("n", 1, 192),
    ),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_images_are_those_of_the_network_behind(form: tuple[list[NodeProto], Dims]) -> None:
    model = _behind(*form)
    view = load(model)
    batches = synthetic_inputs(view, samples=16)
    images = image_form(view).images(batches)
    assert all(batch["x"].shape[1:] == (3, 8, 8) for batch in images)
    size = len(images[0]["x"])
    drawn = synthetic_inputs(load(chain_conv(0, bn=False)), samples=16)[0]["x"]
    np.testing.assert_array_equal(np.concatenate([b["x"] for b in images])[:size], drawn[:size])
    assert describe_inputs(view) == "dead leaves"
    back = image_form(view).inputs(images)
    np.testing.assert_array_equal(back[0]["x"], batches[0]["x"])
    answers = Session(image_form(view).view).run(images[0])[0]
    np.testing.assert_allclose(answers, Session(model).run(batches[0])[0], rtol=1e-5, atol=1e-6)


def test_numbers_in_front_of_the_reshape_are_the_scale_of_pixels() -> None:
    model = _behind([_TO_PIXELS, _reshape("scaled")], ("n", 192), bytes=np.float32(255.0))
    (batch, *_) = synthetic_inputs(load(model), samples=16)
    assert batch["x"].shape == (16, 192)
    assert batch["x"].max() > 200.0


REFUSED: dict[str, tuple[list[NodeProto], Dims, dict[str, Any]]] = {
    "no reshape": ([helper.make_node("Identity", ["x"], ["z"])], ("n", 3, 8, 8), {}),
    "samples are joined": ([_reshape()], ("n", 2, 3, 8, 8), {}),
    "scaled place by place": (
        [helper.make_node("Mul", ["x", "places"], ["first"]), _reshape("first")],
        ("n", 192),
        {"places": np.ones(192, np.float32)},
    ),
    "a free length": ([_reshape()], ("n", "length"), {}),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_other_inputs_stay_as_they_are(case: tuple[list[NodeProto], Dims, dict[str, Any]]) -> None:
    nodes, dims, constants = case
    view = load(_behind(nodes, dims, **constants))
    form = image_form(view)
    assert form.view is view
    assert not form.shapes


@pytest.mark.parametrize("name", ["mlp", "conv1d", "conv3d"])
def test_networks_without_images_stay_as_they_are(name: str) -> None:
    assert not image_form(load(ALL_MODELS[name](0))).shapes


def test_flat_images_are_inverted_as_images_are() -> None:
    options: dict[str, Any] = {"inputs": "deep-inversion", "input_steps": (2,), "cache": None}
    flat, images = (
        prepare_inputs(model, FoldConfig(**options)).inputs
        for model in (_behind([_reshape()], ("n", 192), bn=True), chain_conv(0, bn=True))
    )
    assert flat is not None
    assert images is not None
    assert flat.reason == images.reason
    joined = [np.concatenate([batch["x"] for batch in inputs.batches]) for inputs in (flat, images)]
    np.testing.assert_array_equal(joined[0].reshape(-1, 3, 8, 8), joined[1])


def test_flat_images_are_varied_for_a_refinement() -> None:
    model = _behind([_reshape(target="large")], ("n", 1200), large=np.array([-1, 3, 20, 20]))
    shown = ModelInputs(synthetic_inputs(load(model), samples=8), DATA, "given")
    varied = next(draw_samples(load(model), shown, 8, 0))["x"]
    assert varied.shape == (8, 1200)
    assert not np.array_equal(varied, shown.batches[0]["x"])
