"""Sizes of inputs that a file leaves free: those that its weights ask for, and sizes at which nothing runs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxfold import compare, fold
from onnxfold.errors import VerificationError
from onnxfold.graph.files.load import load
from onnxfold.graph.run.session import Session
from onnxfold.inputs.given_inputs import input_infos
from onnxfold.inputs.images.synthetic import describe_inputs, noise_inputs, synthetic_inputs
from onnxfold.inputs.input_plan import free_sizes, image_sizes, needed_batch, usual_sizes
from onnxfold.machine.memory import memory_limit

RNG = np.random.default_rng(0)


def _network(
    nodes: list[onnx.NodeProto], shape: list[str | int], **weights: np.ndarray[tuple[int, ...], np.dtype[np.generic]]
) -> onnx.ModelProto:
    x, y = helper.make_tensor_value_info("x", 1, shape), helper.make_tensor_value_info("y", 1, None)
    tensors = [numpy_helper.from_array(values, name) for name, values in weights.items()]
    graph = helper.make_graph(nodes, "net", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def _normal(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return RNG.normal(size=shape).astype(np.float32)


def _frames() -> onnx.ModelProto:
    """A network over frames of 80 bands in 3 windows, all free in the file, with a kernel of 7 frames."""
    node = helper.make_node
    nodes = [
        node("Mul", ["x", "scale"], ["m"]), node("Unsqueeze", ["m", "front"], ["u"]),
        node("Transpose", ["u"], ["t"], perm=[0, 3, 1, 2]), node("Conv", ["t", "first"], ["c"]),
        node("Relu", ["c"], ["r"]), node("Slice", ["r", "start", "end", "axis"], ["s"]),
        node("Conv", ["s", "second"], ["y"]),
    ]  # fmt: skip
    numbers = {"front": [0], "start": [0], "end": [-2], "axis": [2]}
    return _network(
        nodes, ["a", "b", "c"], scale=_normal(80, 3), first=_normal(16, 3, 7, 3), second=_normal(4, 16, 3, 78),
        **{name: np.array(values) for name, values in numbers.items()},
    )  # fmt: skip


def test_sizes_are_those_that_weights_ask_for() -> None:
    linear = helper.make_node("MatMul", ["x", "w"], ["y"])
    assert free_sizes(load(_network([linear], ["n", "features"], w=_normal(137, 5)))) == {"x": (None, 137)}
    assert free_sizes(load(_network([linear], ["n", "features"], w=_normal(64, 5)))) == {"x": (None, 64)}
    assert free_sizes(load(_frames())) == {"x": (64, 80, 3)}


def test_a_network_with_all_sizes_free_is_run() -> None:
    report = fold(_frames(), 0.3).report
    assert any("is run at x:64,80,3" in note for note in report.notes)
    assert report.fidelity is not None


def test_a_length_that_windows_leave_is_searched() -> None:
    """Frames of 81 bands, of which a kernel and a pooling leave 26, which are read as they are: no weight has 81."""
    node = helper.make_node
    nodes = [
        node("Unsqueeze", ["x", "front"], ["u"]), node("Conv", ["u", "first"], ["c"]),
        node("MaxPool", ["c"], ["p"], kernel_shape=[1, 3], strides=[1, 3]),
        node("Transpose", ["p"], ["t"], perm=[0, 2, 1, 3]), node("Reshape", ["t", "rows"], ["r"]),
        node("Gemm", ["r", "w"], ["y"]),
    ]  # fmt: skip
    weights = {
        "front": np.array([0, 1]),
        "rows": np.array([-1, 104]),
        "first": _normal(4, 1, 3, 3),
        "w": _normal(104, 5),
    }
    view = load(_network(nodes, ["frames", "bands"], **weights))
    assert free_sizes(view) == {"x": (64, 80)}
    nodes = [
        node("Unsqueeze", ["x", "front"], ["u"]), node("AveragePool", ["u"], ["p"], kernel_shape=[3], strides=[3]),
        node("Flatten", ["p"], ["f"]), node("Gemm", ["f", "w"], ["y"]),
    ]  # fmt: skip
    weights = {"front": np.array([1]), "w": _normal(27, 5)}
    assert free_sizes(load(_network(nodes, [1, "bands"], **weights))) == {"x": (1, 81)}


def test_other_inputs_have_usual_sizes_where_weights_ask_for_one() -> None:
    """They were one pixel large: a watermark was judged there."""
    node = helper.make_node
    nodes = [
        node("GlobalAveragePool", ["x"], ["p"]), node("Flatten", ["p"], ["f"]), node("MatMul", ["f", "v"], ["a"]),
        node("MatMul", ["bits", "w"], ["b"]), node("Add", ["a", "b"], ["y"]),
    ]  # fmt: skip
    model = _network(nodes, ["n", 3, "height", "width"], v=_normal(3, 5), w=_normal(137, 5))
    model.graph.input.append(helper.make_tensor_value_info("bits", 1, ["n", "bits"]))
    assert free_sizes(load(model)) == {"x": (None, 3, 64, 64), "bits": (None, 137)}


def test_frames_of_one_recording_are_no_state_of_layers() -> None:
    """A detector of speech was run on a single frame: its only free axis stands where states have their batch."""
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    assert usual_sizes(load(_network(nodes, [1, "frames", 400]))) == [{"x": (1, 64, 400)}]
    model = _network(nodes, [2, "sequences", 400])
    model.graph.input.append(helper.make_tensor_value_info("frames", 1, ["batch", 16]))
    assert usual_sizes(load(model)) == [{"x": (2, 1, 400), "frames": (None, 16)}]


def test_a_recording_is_longer_than_a_window() -> None:
    """A detector of speakers was run on one frame, behind which no recurrence goes on."""
    window = helper.make_node("Conv", ["x", "w"], ["y"], strides=[400])
    assert free_sizes(load(_network([window], ["n", 1, "t"], w=_normal(4, 1, 800)))) == {"x": (None, 1, 16000)}
    pooled = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("GlobalAveragePool", ["c"], ["y"])]
    assert free_sizes(load(_network(pooled, ["n", 1, "t"], w=_normal(4, 1, 200)))) == {"x": (None, 1, 256)}


def test_numbers_beside_images_have_no_free_size() -> None:
    """A matting network with a ratio to shrink by ended as a bug."""
    nodes = [helper.make_node("Resize", ["x", "", "ratio"], ["r"]), helper.make_node("Conv", ["r", "w"], ["y"])]
    model = _network(nodes, ["n", 3, "height", "width"], w=_normal(4, 3, 3, 3))
    model.graph.input.append(helper.make_tensor_value_info("ratio", 1, [4]))
    assert free_sizes(load(model)) == {}


def test_sizes_for_which_there_is_no_memory_are_passed_over() -> None:
    """A watermark of 64 bits in every pixel of 224 x 224 asked for 94 GiB, and no other size was tried."""
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Sigmoid", ["r"], ["y"])]
    view = load(_network(nodes, ["n", 3, "height", "width"]))
    with memory_limit(600 << 10):
        assert free_sizes(view) == {"x": (None, 3, 64, 64)}
    assert free_sizes(view) == {"x": (None, 3, 224, 224)}


def test_images_of_free_sides_are_run_at_a_usual_size_where_that_runs() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    assert image_sizes(load(_network(nodes, ["n", 3, "height", "width"]))) == {"x": (None, 3, 224, 224)}
    assert image_sizes(load(_network(nodes, [2, "height", "width", 1]))) == {"x": (2, 224, 224, 1)}
    assert image_sizes(load(_network(nodes, ["n", 3, 32, "width"]))) == {}
    pool = [helper.make_node("AveragePool", ["x"], ["p"], kernel_shape=[48, 4], strides=[48, 4])]
    lines = [*pool, helper.make_node("Squeeze", ["p", "axes"], ["y"])]
    line = load(_network(lines, ["n", 3, "height", "width"], axes=np.array([2])))
    assert image_sizes(line) == {"x": (None, 3, 48, 320)}  # one line of text
    with memory_limit(600 << 10):
        assert image_sizes(load(_network([*nodes], ["n", 3, "height", "width"]))) == {"x": (1, 3, 48, 320)}


def test_a_batch_that_an_exporter_wrote_into_a_reshape_is_kept_to() -> None:
    """Of detectors and of networks of signals many declare a free batch, and have a Reshape to one sample."""
    numbers = {"target": np.array([1, 12]), "first": _normal(12, 16), "second": _normal(16, 5)}
    node = helper.make_node
    nodes = [
        node("Reshape", ["x", "target"], ["v"]), node("MatMul", ["v", "first"], ["h"]), node("Relu", ["h"], ["r"]),
        node("MatMul", ["r", "second"], ["y"]),
    ]  # fmt: skip
    model = _network(nodes, ["n", 3, 4], **numbers)
    assert needed_batch(load(model)) == {"x": (1, 3, 4)}
    report = fold(model, 0.3).report
    assert report.fidelity is not None
    assert report.fidelity.samples > 1
    assert any("x:1,3,4, because it takes one sample at a time" in note for note in report.notes)
    nodes = [node("Shape", ["x"], ["s"]), node("Reshape", ["x", "s"], ["t"]), *nodes]
    nodes[2].input[0] = "t"
    free = {"target": np.array([-1, 12])}
    assert not needed_batch(load(_network(nodes, ["n", 3, 4], **(numbers | free))))
    images = [node("ReduceMean", ["x", "axes"], ["p"], keepdims=0), node("Reshape", ["p", "one"], ["y"])]
    view = load(_network(images, ["n", 3, "h", "w"], axes=np.array([2, 3]), one=np.array([1, 3])))
    assert image_sizes(view) == {"x": (1, 3, 224, 224)}


def test_lengths_without_a_name_are_not_one_length() -> None:
    """Exporters write '?' for every free size: a reader of text lines takes no squares."""
    pool = helper.make_node("AveragePool", ["x"], ["p"], kernel_shape=[32, 4], strides=[32, 4])
    nodes = [pool, helper.make_node("Squeeze", ["p", "axes"], ["y"])]
    assert free_sizes(load(_network(nodes, ["?", 3, "?", "?"], axes=np.array([2])))) == {"x": (None, 3, 48, 320)}


def test_sizes_below_a_window_end_no_process() -> None:
    """At a Slice of an axis that a window left with a negative length, onnx's shape inference ends the process."""
    view = load(_frames())
    with pytest.raises(VerificationError, match="do not fit together"):
        view.types_for({"x": (1, 80, 3)})
    assert view.types_for({"x": (16, 80, 3)})["y"][1] == (1, 4, 6, 1)


def test_scores_that_are_none_end_no_fold() -> None:
    """Without axes, Squeeze also takes a batch of one: what looks like scores of classes is no row per sample."""
    node = helper.make_node
    nodes = [
        node("Gemm", ["x", "a"], ["h"]), node("Relu", ["h"], ["r"]), node("Gemm", ["r", "b"], ["g"]),
        node("Sigmoid", ["g"], ["q"]), node("Unsqueeze", ["q", "front"], ["u"]), node("Squeeze", ["u"], ["y"]),
    ]  # fmt: skip
    weights = {"a": _normal(12, 32), "b": _normal(32, 5), "front": np.array([0])}
    assert fold(_network(nodes, ["n", 12], **weights), 0.3).report.inputs is not None


def test_networks_are_compared_at_the_sizes_that_they_are_folded_at(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = _network([linear], ["n", "features"], w=_normal(137, 5))
    assert compare(model, model).outputs[0].relative_error == 0.0  # it does not run at the usual length
    seen: list[tuple[int, ...]] = []
    run = Session.run
    monkeypatch.setattr(Session, "run", lambda self, feeds: (seen.append(feeds["x"].shape), run(self, feeds))[1])
    compare(*[_network([helper.make_node("Relu", ["x"], ["y"])], ["n", 3, "height", "width"])] * 2)
    assert seen[-1][1:] == (3, 224, 224)


def test_an_input_of_lengths_states_all_of_every_sample() -> None:
    """Drawn lengths masked all of a text, whose scores were NaN, and the network was repaired from its weights."""
    nodes = [helper.make_node("Cast", ["lengths"], ["t"], to=1), helper.make_node("ReduceSum", ["x", "axes"], ["s"])]
    nodes += [helper.make_node("Add", ["s", "t"], ["y"])]
    for frames, length in (("frames", 64), (20, 20)):
        model = _network(nodes, ["n", 8, frames], axes=np.array([1, 2]))
        model.graph.input.append(helper.make_tensor_value_info("lengths", 7, ["n"]))
        view = load(model)
        drawn = synthetic_inputs(view, samples=4)[0]["lengths"]
        noise = noise_inputs(input_infos(view), samples=4, seed=0, view=view)["lengths"]
        for lengths in (drawn, noise):
            assert lengths.tolist() == [length] * 4
    for name, states_it in (("x_lens", True), ("seq_len", True), ("valence", False)):
        model.graph.input[1].name = model.graph.node[0].input[0] = name
        assert (synthetic_inputs(load(model), samples=4)[0][name].tolist() == [20] * 4) == states_it


@pytest.mark.parametrize("image", [["n", 3, 24, 32], ["n", 24, 32, 3]])
def test_sizes_and_factors_beside_an_image_state_the_whole_of_it(image: list[str | int]) -> None:
    """PaddleDetection's inputs were drawn as noise, and boxes lay beside the image."""
    model = _network([helper.make_node("Relu", ["x"], ["y"])], image)
    for name in ("im_shape", "scale_factor", "state"):
        model.graph.input.append(helper.make_tensor_value_info(name, 1, ["n", 2]))
    view = load(model)
    (drawn,) = synthetic_inputs(view, samples=4)
    for feeds in (drawn, noise_inputs(input_infos(view), samples=4, seed=0, view=view)):
        assert feeds["im_shape"].tolist() == [[24, 32]] * 4
        assert feeds["scale_factor"].tolist() == [[1, 1]] * 4
        assert len(np.unique(feeds["state"])) == 8
    assert describe_inputs(view) == "dead leaves and Gaussian noise"
