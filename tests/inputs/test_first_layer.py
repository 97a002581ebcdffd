"""A first layer tells what pixels it was trained on."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfold.graph.files.load import load
from onnxfold.inputs.images.first_layer import Pixels, pixels_of
from onnxfold.inputs.images.input_scale import input_scale
from onnxfold.inputs.images.synthetic import synthetic_inputs

_CHANNELS = 24


def _network(mean: float, deviation: float, *, bn: bool, layout: str = "first") -> onnx.ModelProto:
    """Return a first layer whose channels have a deviation of about one on images of a mean and deviation."""
    random = np.random.default_rng(0)
    filters = random.standard_normal((_CHANNELS, 3, 3, 3)) * 0.4 + random.standard_normal((_CHANNELS, 1, 1, 1)) * 0.2
    filters /= deviation
    removed = mean * filters.sum(axis=(1, 2, 3))
    shift = random.standard_normal(_CHANNELS)
    ones = np.ones(_CHANNELS)
    weights = {"w": filters, "bias": shift - removed}
    image, nodes = "x", []
    if layout == "last":
        nodes, image = [helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2])], "t"
    if bn:
        weights = {"w": filters, "g": ones, "b": shift, "m": removed, "v": random.uniform(0.5, 2.0, _CHANNELS)}
        nodes += [
            helper.make_node("Conv", [image, "w"], ["c"]),
            helper.make_node("BatchNormalization", ["c", "g", "b", "m", "v"], ["y"]),
        ]
    else:
        nodes.append(helper.make_node("Conv", [image, "w", "bias"], ["y"]))
    dims = ["n", 16, 16, 3] if layout == "last" else ["n", 3, 16, 16]
    graph = helper.make_graph(
        nodes,
        "first_layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", _CHANNELS, 14, 14])],
        [numpy_helper.from_array(v.astype(np.float32), n) for n, v in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _told(model: onnx.ModelProto, image: str = "x") -> Pixels | None:
    return pixels_of(load(model), image)


@pytest.mark.parametrize("bn", [False, True])
@pytest.mark.parametrize("mean", [0.5, 0.9])
def test_pixels_with_a_mean(mean: float, bn: bool) -> None:
    for largest in (1.0, 255.0):
        pixels = _told(_network(mean * largest, 0.25 * largest, bn=bn))
        assert pixels is not None
        assert pixels.largest == largest
        assert pixels.mean == pytest.approx(mean * largest, rel=0.15)


@pytest.mark.parametrize("bn", [False, True])
def test_pixels_up_to_255_without_their_mean(bn: bool) -> None:
    model = _network(0.0, 64.0, bn=bn)
    assert _told(model) == Pixels(255.0, 0.0)
    scale = input_scale(load(model), "x")
    assert scale is not None
    assert (float(scale.centre.mean()), scale.largest) == (0.0, np.inf)


@pytest.mark.parametrize("bn", [False, True])
@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (0.0, 0.5), (0.1, 1.0)])
def test_standardised_images_are_left_alone(mean: float, deviation: float, bn: bool) -> None:
    model = _network(mean, deviation, bn=bn)
    assert _told(model) is None
    assert input_scale(load(model), "x") is None


def test_images_are_drawn_so() -> None:
    for layout in ("first", "last"):
        view = load(_network(115.0, 60.0, bn=False, layout=layout))
        drawn = np.concatenate([batch["x"] for batch in synthetic_inputs(view, samples=64)])
        assert drawn.min() >= 0.0
        assert 200.0 < drawn.max() <= 255.0
        assert 90.0 < drawn.mean() < 140.0


def test_biases_may_stand_behind_the_convolution() -> None:
    plain, apart = (_network(115.0, 60.0, bn=True) for _ in range(2))
    node = apart.graph.node[0]
    node.output[0] = "sums"
    apart.graph.node.insert(1, helper.make_node("Add", ["sums", "more"], ["c"]))
    more = np.full((1, _CHANNELS, 1, 1), 0.25, np.float32)
    apart.graph.initializer.append(numpy_helper.from_array(more, "more"))
    pixels, wanted = _told(apart), _told(plain)
    assert pixels is not None
    assert wanted is not None
    assert pixels.largest == wanted.largest
    assert pixels.mean == pytest.approx(wanted.mean, rel=0.05)


def test_what_is_not_known_is_left_alone() -> None:
    model = _network(115.0, 60.0, bn=False)
    del model.graph.node[0].input[2]
    assert _told(model) is None
    assert _told(model, "y") is None
    zeros = _network(115.0, 60.0, bn=True)
    zeros.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.zeros((_CHANNELS, 3, 3, 3), np.float32), "w"))
    assert _told(zeros) is None
    computed = _network(115.0, 60.0, bn=False)
    computed.graph.node[0].input[1] = "x"
    assert _told(computed) is None
