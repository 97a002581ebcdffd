"""Inputs follow the normalisation that a graph begins with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

import onnxfold
from onnxfold.graph.files.load import load
from onnxfold.graph.run.session import InputInfo
from onnxfold.inputs.images.input_scale import input_scale
from onnxfold.inputs.images.synthetic import describe_inputs, noise_inputs, synthetic_inputs
from testing.inputs import model_inputs
from testing.models import chain_conv

LENET = Path(onnxfold.__file__).parent / "data" / "lenet5_2x.onnx"
IMAGES = LENET.with_name("fashion_mnist_test_2000.npz")
PIXELS = {"to_one": 255.0, "mean": 0.286, "std": 0.353}
_NORMALISED = [("Div", "to_one"), ("Sub", "mean"), ("Div", "std")]


def _behind(nodes: list[NodeProto], constants: dict[str, Any], elem: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """Return a convolutional network behind nodes from 'x' to 'z'."""
    model = chain_conv(0)
    graph = model.graph
    for node in graph.node:
        node.input[:] = ["z" if name == "x" else name for name in node.input]
    old = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes, *old])
    graph.initializer.extend(numpy_helper.from_array(np.asarray(v, np.float32), n) for n, v in constants.items())
    graph.input[0].type.tensor_type.elem_type = elem
    return model


def _chain(steps: list[tuple[str, str]], first: str = "x", last: str = "z") -> list[NodeProto]:
    names = [first, *(f"n{i}" for i in range(len(steps) - 1)), last]
    return [helper.make_node(op, [names[i], c] if c else [names[i]], [names[i + 1]]) for i, (op, c) in enumerate(steps)]


def with_pixels(path: Path) -> onnx.ModelProto:
    """Return the bundled network with its normalisation in the graph."""
    model = onnx.load(LENET)
    graph = model.graph
    graph.node[0].input[0] = "z"
    for node in reversed(_chain(_NORMALISED, graph.input[0].name)):
        graph.node.insert(0, node)
    graph.initializer.extend(numpy_helper.from_array(np.float32(v), n) for n, v in PIXELS.items())
    onnx.save(model, path)
    return model


def _drawn(model: onnx.ModelProto) -> NDArray[Any]:
    return np.concatenate([batch["x"] for batch in synthetic_inputs(load(model), samples=64)])


def test_pixels_are_drawn_as_such() -> None:
    model = _behind(_chain(_NORMALISED), PIXELS)
    drawn = _drawn(model)
    assert drawn.min() >= 0.0
    assert 200.0 < drawn.max() <= 255.0
    behind = (drawn / 255.0 - 0.286) / 0.353
    assert abs(behind.mean()) < 0.25
    assert 0.7 < behind.std() < 1.1
    noise = noise_inputs([InputInfo("x", np.dtype("f"), (4, 3, 8, 8))], samples=4, seed=0, view=load(model))
    assert noise["x"].max() > 200.0


@pytest.mark.parametrize(
    ("steps", "constants", "centre", "spread", "largest"),
    [
        ([("Div", "a")], {"a": 255.0}, 127.5, 63.75, 255.0),
        ([("Mul", "a"), ("Sub", "b")], {"a": 2.0, "b": 1.0}, 0.5, 0.25, 1.0),
        ([("Sub", "a"), ("Mul", "b")], {"a": 127.5, "b": 1 / 128}, 127.5, 63.75, 255.0),
        ([("Sub", "a")], {"a": np.array([104.0, 117.0, 123.0]).reshape(3, 1, 1)}, [104.0, 117.0, 123.0], 63.75, 255.0),
        ([("Sub", "a"), ("Div", "b")], {"a": 0.45, "b": 0.22}, 0.45, 0.22, 1.0),
        ([("Add", "a"), ("Mul", "b")], {"a": 5.0, "b": 0.5}, -5.0, 2.0, np.inf),
    ],
)
def test_numbers_of_the_graph(
    steps: list[tuple[str, str]], constants: dict[str, Any], centre: Any, spread: Any, largest: float
) -> None:
    found = input_scale(load(_behind(_chain(steps), constants)), "x")
    assert found is not None
    np.testing.assert_allclose(found.centre.ravel(), np.broadcast_to(centre, 3), rtol=1e-5)
    np.testing.assert_allclose(found.spread.ravel(), np.broadcast_to(spread, 3), rtol=1e-5)
    assert found.largest == largest


def test_statistics_of_a_first_normalisation() -> None:
    values = {"g": np.ones(3), "b": np.zeros(3), "m": [110.0, 120.0, 130.0], "v": [3600.0, 3600.0, 3600.0]}
    node = helper.make_node("BatchNormalization", ["x", "g", "b", "m", "v"], ["z"])
    found = input_scale(load(_behind([node], values)), "x")
    assert found is not None
    assert found.largest == 255.0
    np.testing.assert_allclose(found.centre.ravel(), values["m"])
    np.testing.assert_allclose(found.spread.ravel(), 60.0, rtol=1e-5)
    values |= {"m": [0.01, 0.02, 0.03], "v": [1.0, 1.0, 1.0]}  # nothing between 0 and 1 deviates by 1
    found = input_scale(load(_behind([node], values)), "x")
    assert found is not None
    assert found.largest == np.inf


def test_bytes_are_pixels() -> None:
    cast = helper.make_node("Cast", ["x"], ["z"], to=TensorProto.FLOAT)
    model = _behind([cast], {}, TensorProto.UINT8)
    drawn = _drawn(model)
    assert drawn.dtype == np.uint8
    assert drawn.std() > 40
    assert describe_inputs(load(model)) == "dead leaves"


def test_channels_last_are_followed_through_a_transpose() -> None:
    nodes = [
        helper.make_node("Sub", ["x", "a"], ["u"]),
        helper.make_node("Transpose", ["u"], ["t"], perm=[0, 3, 1, 2]),
        helper.make_node("Div", ["t", "b"], ["z"]),
    ]
    model = _behind(nodes, {"a": [120.0, 121.0, 122.0], "b": np.array([50.0, 51.0, 52.0]).reshape(3, 1, 1)})
    dims = model.graph.input[0].type.tensor_type.shape.dim
    channels, last = dims[1].dim_value, dims[3].dim_value
    dims[1].dim_value, dims[3].dim_value = last, channels
    found = input_scale(load(model), "x")
    assert found is not None
    np.testing.assert_allclose(found.centre.ravel(), [120.0, 121.0, 122.0], rtol=1e-6)
    np.testing.assert_allclose(found.spread.ravel(), [50.0, 51.0, 52.0], rtol=1e-6)


def _by_channel(order: tuple[int, ...]) -> list[NodeProto]:
    """Return nodes that take every channel alone, scale it, and put them together in an order."""
    nodes = [helper.make_node("Split", ["x"], ["x0", "x1", "x2"], axis=1)]
    for i in range(3):
        nodes.append(helper.make_node("Sub", [f"x{i}", f"m{i}"], [f"c{i}"]))
        nodes.append(helper.make_node("Div", [f"c{i}", f"s{i}"], [f"d{i}"]))
    return [*nodes, helper.make_node("Concat", [f"d{i}" for i in order], ["z"], axis=1)]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_channels_may_be_scaled_one_by_one_and_change_places(order: tuple[int, ...]) -> None:
    means, deviations = [104.0, 117.0, 123.0], [50.0, 51.0, 52.0]
    constants = {f"m{i}": m for i, m in enumerate(means)} | {f"s{i}": s for i, s in enumerate(deviations)}
    found = input_scale(load(_behind(_by_channel(order), constants)), "x")
    assert found is not None
    assert found.largest == 255.0
    np.testing.assert_allclose(found.centre.ravel(), means, rtol=1e-5)
    np.testing.assert_allclose(found.spread.ravel(), deviations, rtol=1e-5)


def test_of_one_channel_that_becomes_three_the_mean_counts() -> None:
    nodes = [helper.make_node("Concat", ["x", "x", "x"], ["c"], axis=1), *_chain([("Sub", "a")], "c")]
    model = _behind(nodes, {"a": np.array([100.0, 110.0, 120.0]).reshape(3, 1, 1)})
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1
    found = input_scale(load(model), "x")
    assert found is not None
    np.testing.assert_allclose(found.centre, np.full((1, 1, 1, 1), 110.0), rtol=1e-5)


def test_channels_that_are_mixed_tell_nothing() -> None:
    nodes = [*_by_channel((0, 1, 2))[:-1], helper.make_node("Add", ["d0", "d1"], ["d"])]
    nodes.append(helper.make_node("Concat", ["d", "d1", "d2"], ["z"], axis=1))
    constants = {f"{n}{i}": 100.0 for n in "ms" for i in range(3)}
    assert input_scale(load(_behind(nodes, constants)), "x") is None


@pytest.mark.parametrize("nodes", [[helper.make_node("Relu", ["x"], ["z"])], _chain([("Add", "a")])])
def test_nothing_is_known(nodes: list[NodeProto]) -> None:
    model = _behind(nodes, {"a": 0.0})
    assert input_scale(load(model), "x") is None
    np.testing.assert_array_equal(_drawn(model), _drawn(chain_conv(0)))


def test_pixels_are_inverted_as_such() -> None:
    model = _behind(_chain(_NORMALISED), PIXELS)
    found = model_inputs(load(model), "deep-inversion", samples=16, steps=(4,))
    plain = model_inputs(load(chain_conv(0)), "deep-inversion", samples=16, steps=(4,))
    images = found.batches[0]["x"]
    assert images.min() >= 0.0
    assert images.max() > 200.0
    behind, same = (images / 255.0 - 0.286) / 0.353, plain.batches[0]["x"]
    inside = (images > 0.0) & (images < 255.0)
    assert np.corrcoef(behind[inside], same[inside])[0, 1] > 0.9


def test_int8_of_a_network_that_takes_pixels(tmp_path: Path) -> None:
    """The issue's row: agreement 79 %, accuracy 94.05 -> 77.95."""
    pixels = tmp_path / "pixels.onnx"
    model = with_pixels(pixels)
    done = onnxfold.fold(pixels, sparsity=0, dtype="int8", inputs="dead-leaves", samples=128)
    with np.load(IMAGES) as data:
        x, y = (data[key][:500] for key in data.files)
    x = np.pad(x.reshape(-1, 1, 28, 28), [(0, 0), (0, 0), (2, 2), (2, 2)]).astype(np.float32)
    a, b = (
        ort.InferenceSession(m.SerializeToString()).run(None, {model.graph.input[0].name: x})[0].argmax(1)
        for m in (model, done.model)
    )
    assert (a == b).mean() > 0.98
    assert (b == y).mean() > (a == y).mean() - 0.01


def test_recordings_of_16_bits_are_as_loud_as_speech() -> None:
    """A detector of speech was shown zeros and ones, of 32,768."""
    nodes = [*_chain([("Cast", "")], last="f"), helper.make_node("Conv", ["f", "w"], ["y"])]
    nodes[0].attribute.append(helper.make_attribute("to", TensorProto.FLOAT))
    x = helper.make_tensor_value_info("x", TensorProto.INT16, ["n", 1, 512])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    weight = numpy_helper.from_array(np.ones((2, 1, 8), np.float32), "w")
    view = load(helper.make_model(helper.make_graph(nodes, "speech", [x], [y], [weight])))
    values = synthetic_inputs(view, samples=8)[0]["x"]
    assert values.dtype == np.int16
    assert 1400 < values.std() < 1900
    assert describe_inputs(view) == "1/f noise"
