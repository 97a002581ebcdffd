"""Walks of large images: few samples and small batches in front of the first strides, all samples behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from onnxfold.graph.files.load import load
from onnxfold.graph.nodes import node_key
from onnxfold.graph.view import GraphView
from onnxfold.inputs import input_plan, walk_batches
from onnxfold.inputs.input_plan import InputRequest, planned_leaves, planned_samples
from onnxfold.inputs.sample_kinds import DATA
from onnxfold.inputs.walk_batches import enough_samples, stage_batches
from onnxfold.statistics.activations import Activations, Batches, Stage, StagedBatches
from testing.graph_builder import GraphBuilder
from testing.inputs import model_inputs
from testing.models import random_input, residual

#: Pixels of the images, and so many positions in front of the stride.
_SIDE = 32
_Shape = Sequence[int | str]


def _network(strides: Sequence[int], *, counts: bool = False, up: bool = False) -> GraphView:
    """Return a view of convolutions with a residual over each; the first stride is two by two positions narrower."""
    random = np.random.default_rng(0)
    nodes, weights, x = [], [], "x"
    if counts:  # a number that knows no samples, and is read at the end
        nodes = [helper.make_node("Shape", ["x"], ["s"], start=2), helper.make_node("Cast", ["s"], ["c"], to=1)]
        nodes.append(helper.make_node("ReduceMean", ["c"], ["m"], keepdims=0))
    for i, stride in enumerate(strides):
        values = random.standard_normal((4, 4, 3, 3)).astype(np.float32) * 0.2
        weights.append(numpy_helper.from_array(values, f"w{i}"))
        nodes += [
            helper.make_node("Conv", [x, f"w{i}"], [f"y{i}"], kernel_shape=[3, 3], pads=[1] * 4, strides=[stride] * 2),
            helper.make_node("Relu", [f"y{i}"], [f"r{i}"]),
            helper.make_node("Add", [f"r{i}", f"y{i}"], [f"a{i}"]),
        ]
        x = f"a{i}"
    if up:
        scales = numpy_helper.from_array(np.array([1, 1, 4, 4], np.float32), "scales")
        weights += [scales, numpy_helper.from_array(np.ones((4, 4, 1, 1), np.float32), "wide")]
        nodes += [helper.make_node("Resize", [x, "", "scales"], ["u"]), helper.make_node("Conv", ["u", "wide"], ["v"])]
        x = "v"
    nodes.append(helper.make_node("Mul", [x, "m"], ["z"]) if counts else helper.make_node("Relu", [x], ["z"]))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, _SIDE, _SIDE])]
    graph = helper.make_graph(
        nodes, "g", inputs, [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)], weights
    )
    return load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def _batches(samples: int, size: int = 64) -> Batches:
    images = np.random.default_rng(1).standard_normal((samples, 4, _SIDE, _SIDE)).astype(np.float32)
    return [{"x": images[i : i + size]} for i in range(0, samples, size)]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let eight images show enough of the first layers, and four of them fill a batch there."""
    monkeypatch.setattr(walk_batches, "_FEWEST", 8)
    monkeypatch.setattr(walk_batches, "_ENOUGH", 8 * _SIDE**2)
    monkeypatch.setattr(walk_batches, "BATCH_BYTES", 4 * 3 * 4 * 4 * _SIDE**2)


def _samples(batches: Batches) -> list[int]:
    return [len(batch["x"]) for batch in batches]


def _walk(view: GraphView, inputs: Batches | StagedBatches) -> dict[str, list[np.ndarray[Any, Any]]]:
    """Return the batches of every tensor as they are when it is made."""
    made: dict[str, list[np.ndarray[Any, Any]]] = {}
    walk = Activations(view, inputs)
    for node in walk.walk():
        walk.run(node)
        made |= {name: [np.array(values) for values in walk.values[name]] for name in node.output}
    return made


@pytest.mark.parametrize(("strides", "samples"), [([1, 1], 8), ([2, 1], 8 * 4)])
def test_samples_that_show_every_layer_the_least(
    strides: list[int], samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk_batches, "_LEAST", 8 * _SIDE**2)
    assert enough_samples(_network(strides)) == samples
    assert enough_samples(load(residual(0))) > 512  # its classifier sees one position of each


def test_products_of_two_activations_see_no_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Detectors have attention over the positions of their last map, which nothing is fitted to."""
    monkeypatch.setattr(walk_batches, "_LEAST", 800)
    builder = GraphBuilder("attention", 0, (4, 10, 10))
    weight = builder.constant("w", builder.normal(4, 4, 1, 1))
    result = builder.node("Conv", ["x", weight], (4, 10, 10))
    builder.output(builder.node("MatMul", [result, "x"], (4, 10, 10)))
    assert enough_samples(load(builder.build())) == 8


@pytest.mark.usefixtures("small")
def test_few_samples_are_walked_in_front_of_a_stride_and_all_behind_it() -> None:
    view, batches = _network([1, 2, 1]), _batches(32)
    staged = stage_batches(view, batches)
    assert isinstance(staged, StagedBatches)
    assert _samples(staged.first) == [4, 4]
    assert sum(len(stage.joining) for stage in staged.stages) == 6
    assert staged.stages[0].node == node_key(view.nodes[4])  # the Relu behind the stride
    images = np.concatenate([b["x"] for b in (*staged.first, *(b for stage in staged.stages for b in stage.joining))])
    whole = np.concatenate([batch["x"] for batch in batches])
    order = np.lexsort(whole[:, 0, 0, :2].T), np.lexsort(images[:, 0, 0, :2].T)
    np.testing.assert_array_equal(images[order[1]], whole[order[0]])  # all of them, each once
    places = sorted(int(np.flatnonzero((whole == image).all(axis=(1, 2, 3)))[0]) for image in images[:8])
    assert places[0] < 16 <= places[-1]  # from all over a user's samples


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("counts", [False, True])
def test_a_staged_walk_computes_what_a_plain_one_does(counts: bool) -> None:
    """A tensor that knows no samples keeps batches apart."""
    view, batches = _network([1, 2, 1, 2], counts=counts), _batches(40)
    staged = stage_batches(view, batches)
    assert isinstance(staged, StagedBatches)
    joined = [*staged.first, *(batch for stage in staged.stages for batch in stage.joining)]
    plain, made = _walk(view, joined), _walk(view, staged)
    assert [len(part) for part in made["y0"]] == [4, 4]
    assert (len(made["z"]) < len(plain["z"])) != counts
    for name, samples in (("a0", 8), ("a1", 32), ("y2", 32), ("a3", 40), ("z", 40)):
        values = np.concatenate(made[name])
        assert len(values) == samples
        wanted = np.concatenate(plain[name])[:samples]
        np.testing.assert_allclose(values, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.usefixtures("small")
def test_batches_of_a_fixed_size_join_as_they_are() -> None:
    view, batches = _network([1, 2, 1]), _batches(32, 1)
    staged = stage_batches(view, batches, is_fixed=True)
    assert isinstance(staged, StagedBatches)
    joined = [*staged.first, *(batch for stage in staged.stages for batch in stage.joining)]
    assert _samples(staged.first) == [1] * 8
    assert _samples(joined) == [1] * 32
    plain, made = _walk(view, joined), _walk(view, staged)
    for name, samples in (("a0", 8), ("z", 32)):
        assert [len(part) for part in made[name]] == [1] * samples
        for values, wanted in zip(made[name], plain[name], strict=False):
            np.testing.assert_allclose(values, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


def _planned_leaves(strides: list[int], cost: float, requested: InputRequest) -> int:
    view = _network(strides)
    return planned_leaves(view, planned_samples(view, cost, requested)[0], cost, requested)


@pytest.mark.parametrize(
    ("strides", "cost", "request_", "count"),
    [
        pytest.param([1, 2, 1], 1e6, InputRequest(), 256, id="as many as gain"),
        pytest.param([1, 2, 1], 6e9, InputRequest(), 192, id="as many as the cost allows"),
        pytest.param([1, 2, 1], 1e11, InputRequest(), 32, id="a costly network"),
        pytest.param([1, 1, 1], 1e6, InputRequest(), 25, id="without strides"),
        pytest.param([1, 2, 1], 1e6, InputRequest(samples=40), 40, id="as many as are asked for"),
        pytest.param([1, 2, 1], 6e9, InputRequest(seconds=16.0), 128, id="a limit of time"),
    ],
)
def test_more_images_are_drawn_where_walks_take_them_behind_strides(
    monkeypatch: pytest.MonkeyPatch, strides: list[int], cost: float, request_: InputRequest, count: int
) -> None:
    monkeypatch.setattr(input_plan, "ACTIVATION_BYTES", 1)
    monkeypatch.setattr(walk_batches, "BATCH_BYTES", 1 << 17)
    assert _planned_leaves(strides, cost, request_) == count


def test_images_that_are_drawn_take_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_plan, "ACTIVATION_BYTES", 1)
    monkeypatch.setattr(walk_batches, "BATCH_BYTES", 1 << 17)
    monkeypatch.setattr(input_plan, "_STAGED_BYTES", 150 * 4 * 4 * _SIDE**2)
    assert _planned_leaves([1, 2, 1], 1e6, InputRequest()) == 128


def test_samples_join_in_front_of_the_first_node() -> None:
    """Nothing is computed yet."""
    view, batches = _network([1]), _batches(12, 4)
    made = _walk(view, StagedBatches(batches[:2], (Stage(node_key(view.nodes[0]), 8, batches[2:]),)))
    assert [len(part) for part in made["z"]] == [8, 4]
    plain = np.concatenate(_walk(view, batches)["z"])
    np.testing.assert_allclose(np.concatenate(made["z"]), plain, rtol=1e-4, atol=1e-5 * np.abs(plain).max())


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("view", "samples"),
    [
        pytest.param(_network([1, 1, 1]), 40, id="no stride"),
        pytest.param(_network([1, 2, 2], up=True), 40, id="back to all positions"),
        pytest.param(_network([1, 2, 1]), 12, id="hardly more"),
    ],
)
def test_all_samples_are_walked_where_a_stage_gains_nothing(view: GraphView, samples: int) -> None:
    staged = stage_batches(view, _batches(samples))
    first = staged.first if isinstance(staged, StagedBatches) else staged
    assert sum(_samples(first)) == samples


def test_small_images_are_walked_as_they_are() -> None:
    batches = _batches(80)
    staged = stage_batches(_network([1, 2, 1]), batches)
    assert isinstance(staged, list)
    assert _samples(staged) == _samples(batches)


def test_a_fold_on_staged_samples_is_as_good(monkeypatch: pytest.MonkeyPatch) -> None:
    model = residual(3)
    shown = random_input(model, 0, batch=160)
    plain = _fold(model, shown)
    monkeypatch.setattr(walk_batches, "BATCH_BYTES", 1 << 17)
    monkeypatch.setattr(walk_batches, "_FEWEST", 32)
    monkeypatch.setattr(walk_batches, "_ENOUGH", 32 * 64)
    staged = model_inputs(load(model), DATA, shown, samples=160).staged(load(model))
    assert isinstance(staged, StagedBatches)
    fold = _fold(model, shown)
    asked = random_input(model, 1, batch=200)
    wanted = _answers(model, asked)
    lost = [np.square(_answers(m, asked) - wanted).mean() / wanted.var() for m in (plain, fold)]
    assert lost[1] < max(1.5 * lost[0], 1e-6)
    assert [n.op_type for n in fold.graph.node] == [n.op_type for n in plain.graph.node]


def _fold(model: onnx.ModelProto, shown: dict[str, np.ndarray[Any, Any]]) -> onnx.ModelProto:
    return onnxfold.fold(model, 0.3, calibration=shown, cache=None, verify=False).model


def _answers(model: onnx.ModelProto, feeds: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    from onnxfold.graph.run.session import Session

    return Session(model).run(feeds)[0].astype(np.float64)


@pytest.mark.parametrize("mirrored", [False, True])
def test_a_part_of_every_batch_of_given_samples_is_held_out(mirrored: bool) -> None:
    """Of 200 samples the last batch holds eight; what decides is a quarter, from all over the samples."""
    view = _network([1])
    images = np.concatenate([batch["x"] for batch in _batches(168)])
    inputs = replace(model_inputs(view, DATA, {"x": images}, samples=168), is_mirrored=mirrored)
    count = inputs.samples
    seen, held_out = inputs.split()
    assert held_out.samples == pytest.approx(count / 4, abs=3)
    assert seen.samples + held_out.samples == count
    assert len(seen.batches) == len(inputs.batches)
    assert not mirrored or all(len(batch["x"]) % 2 == 0 for batch in held_out.batches)
