"""What a network is run on: kinds, the choice among them, the data of users."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from onnxfold.budget.costs.running import forward_cost
from onnxfold.errors import ConfigError, UnsupportedModelError
from onnxfold.graph.files.load import load
from onnxfold.graph.shapes.footprint import Footprint
from onnxfold.graph.view import GraphView
from onnxfold.inputs import input_plan
from onnxfold.inputs.images.synthetic import synthetic_inputs
from onnxfold.inputs.inversion import deep_inversion
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.machine import memory
from testing.inputs import model_inputs
from testing.models import chain_conv, conv1d, mlp, random_input

Array = NDArray[Any]


def _view(bn: bool = True) -> GraphView:
    return load(chain_conv(0, bn=bn))


def _all(inputs: ModelInputs, name: str = "x") -> Array:
    return np.concatenate([batch[name] for batch in inputs.batches])


def _fixed_batch(model: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    return model


def _embedding(words: int = 11) -> onnx.ModelProto:
    """Integer ids that a table is looked up by, and a mask of integers that no table is."""
    random = np.random.default_rng(0)
    table = numpy_helper.from_array(random.standard_normal((words, 6)).astype(np.float32), "table")
    weight = numpy_helper.from_array(random.standard_normal((6, 3)).astype(np.float32), "w")
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Cast", ["mask"], ["m"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["m", "axis"], ["m3"]),
        helper.make_node("Mul", ["rows", "m3"], ["masked"]),
        helper.make_node("MatMul", ["masked", "w"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", 5]) for n in ("ids", "mask")]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 5, 3])
    axis = numpy_helper.from_array(np.array([2], np.int64), "axis")
    graph = helper.make_graph(nodes, "embedding", inputs, [output], [table, weight, axis])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


# -- kinds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dead-leaves", "noise"])
def test_requested_kinds(kind: str) -> None:
    inputs = model_inputs(_view(), kind, samples=40)
    assert (inputs.kind, inputs.reason, inputs.samples) == (kind, "requested", 40)
    assert not inputs.facts.has_data_statistics
    x = _all(inputs)
    assert (x.shape, x.dtype) == ((40, 3, 8, 8), np.float32)
    assert abs(x.mean()) < 0.1
    assert abs(x.std() - 1.0) < 0.1


def test_dead_leaves_have_neighbours_that_agree() -> None:
    """Noise has none."""
    correlation = {}
    for kind in ("dead-leaves", "noise"):
        x = _all(model_inputs(_view(), kind, samples=64))
        correlation[kind] = float(np.corrcoef(x[..., 1:].ravel(), x[..., :-1].ravel())[0, 1])
    assert correlation["dead-leaves"] > 0.5
    assert abs(correlation["noise"]) < 0.1


def test_deep_inversion() -> None:
    pytest.importorskip("torch")
    inputs = model_inputs(_view(), "deep-inversion", samples=4)
    assert (inputs.kind, inputs.samples) == ("deep-inversion", 4)
    assert inputs.facts.has_data_statistics
    assert inputs.reason.startswith("BatchNormalization statistics off by ")


@pytest.mark.parametrize("samples", [1, 63, 64, 65, 130, 600])
def test_as_many_samples_as_requested(samples: int) -> None:
    inputs = model_inputs(_view(), "noise", samples=samples)
    assert (inputs.samples, inputs.notes) == (samples, ())
    assert all(len(batch["x"]) <= 64 for batch in inputs.batches)


# -- the choice ------------------------------------------------------------------------------------


def test_auto_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deep_inversion, "torch_is_available", lambda: False)
    inputs = model_inputs(_view(), "auto", samples=8)
    assert inputs.kind == "dead-leaves"
    assert inputs.reason == "deep inversion is not possible: torch is not installed (pip install torch)"


def test_deep_inversion_without_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxfold.torch_graph import availability

    monkeypatch.setattr(deep_inversion, "torch_is_available", lambda: False)
    monkeypatch.setattr(availability, "torch_is_available", lambda: False)
    with pytest.raises((UnsupportedModelError, ConfigError), match="torch"):
        model_inputs(_view(), "deep-inversion", samples=8)


def test_auto_with_batch_normalization_inverts() -> None:
    pytest.importorskip("torch")
    inputs = model_inputs(_view(), "auto", samples=4)
    assert inputs.kind == "deep-inversion"
    assert "BatchNormalization statistics off by" in inputs.reason


def test_auto_does_not_start_what_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    cost = forward_cost(_view()) * 4 * 30  # of 4 samples and the fewest steps
    monkeypatch.setattr("onnxfold.inputs.input_plan._INVERTED_PER_SECOND", cost / 480.0)
    inputs = model_inputs(_view(), "auto", samples=4)
    assert inputs.kind == "dead-leaves"
    assert inputs.reason == "deep inversion would take about 8 minutes on two cores: allow it with --input-seconds 480"
    assert model_inputs(_view(), "deep-inversion", samples=4).kind == "deep-inversion"
    assert model_inputs(_view(), "auto", samples=4, seconds=481.0).kind == "deep-inversion"


def test_fewer_samples_where_a_run_over_all_would_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxfold.inputs.input_plan._RUN_COST", 40.0 * forward_cost(_view()))
    monkeypatch.setattr("onnxfold.inputs.input_plan._FEWEST_SAMPLES", 4)
    assert model_inputs(_view(), "dead-leaves").samples == 40
    assert model_inputs(_view(), "dead-leaves", samples=256).samples == 256  # requested
    monkeypatch.setattr("onnxfold.inputs.input_plan._RUN_COST", 1.0)
    assert model_inputs(_view(), "dead-leaves").samples == 4
    monkeypatch.setattr("onnxfold.inputs.input_plan._FEWEST_LARGE", 2)
    monkeypatch.setattr("onnxfold.inputs.input_plan.enough_samples", lambda view: 3)
    assert model_inputs(_view(), "dead-leaves").samples == 3


def test_auto_without_batch_normalization_adds_dead_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr("onnxfold.inputs.input_plan.INVERTED", 4)
    inputs = model_inputs(_view(bn=False), "auto", samples=12)
    assert inputs.kind == "deep-inversion"
    assert inputs.reason.startswith("4 inverted for class scores and even channels (")
    assert inputs.reason.endswith(" 8 dead leaves")
    assert inputs.samples == 12


def test_limits_win_over_the_requested_samples() -> None:
    view = _view()
    per_sample = 2 * Footprint.of(view, {}).peak  # the network, and its fold beside it
    with memory.memory_limit(50 * per_sample):
        inputs = model_inputs(view, "noise", samples=64)
        assert model_inputs(view, "noise").notes == ()
    assert inputs.samples == 50
    assert inputs.notes[0].startswith("64 samples were requested; the memory limit (")
    assert inputs.notes[0].endswith(") allows 50")
    seconds = 20.5 * forward_cost(view) / input_plan._RUN_PER_SECOND
    inputs = model_inputs(view, "noise", samples=64, seconds=seconds)
    assert inputs.samples == 20
    assert inputs.notes[0].endswith(f"--input-seconds {seconds:g} at the counted cost allows 20")


def test_fewer_inverted_samples_where_there_is_little_time() -> None:
    """Counted, not clocked: nothing depends on how fast they are made."""
    view = _view()
    seconds = 3.5 * 30 * forward_cost(view) / input_plan._INVERTED_PER_SECOND
    count, settings, notes = input_plan.planned_inversion(
        8, forward_cost(view), input_plan.InputRequest(8, seconds), has_statistics=True
    )
    assert (count, settings.steps.statistics) == (3, 35)
    assert notes[0].endswith("allows to invert 3 for 30 steps")
    plan = input_plan.planned_inversion(8, forward_cost(view), input_plan.InputRequest(8), has_statistics=True)
    assert (plan[0], plan[1].steps.statistics, plan[2]) == (8, 40, ())


def test_steps_of_an_inversion_that_does_not_happen() -> None:
    with pytest.raises(ConfigError, match="input_steps is given, but inputs are not inverted: requested"):
        model_inputs(_view(), "dead-leaves", steps=(3,))


def test_auto_takes_data_where_it_is_given() -> None:
    data = random_input(chain_conv(0), 3, batch=10)
    for kind in ("auto", "deep-inversion", "noise", "data"):
        inputs = model_inputs(_view(), kind, data)
        assert (inputs.kind, inputs.reason, inputs.samples) == ("data", "the given samples", 10)
        assert inputs.facts.has_data_statistics
        np.testing.assert_array_equal(_all(inputs), data["x"])


def test_data_that_is_not_given() -> None:
    with pytest.raises(ConfigError, match=r"this method takes statistics from your data: give --calibration FILE\.npz"):
        model_inputs(_view(), "data")


# -- the data of users -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"image": np.zeros((4, 3, 8, 8))}, "the data has no array 'x': name the arrays after the model's inputs"),
        ({}, "the data has no array 'x'"),
        ({"x": np.zeros((4, 1, 8, 8))}, r"array 'x' has the shape [4, 1, 8, 8], but the model takes [any, 3, 8, 8]"),
        ({"x": np.zeros((3, 8, 8))}, "array 'x' has the shape [3, 8, 8]"),
        ({"x": np.float32(0.0)}, "array 'x' has the shape []"),
    ],
)
def test_data_that_does_not_fit(arrays: dict[str, Array], words: str, tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)
    for given in (arrays, path, str(path)):
        with pytest.raises(ConfigError) as error:
            model_inputs(_view(), "auto", given)
        assert words in str(error.value)


def test_files_that_are_no_data(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.npz' does not exist"):
        model_inputs(_view(), "auto", tmp_path / "none.npz")
    broken = tmp_path / "broken.npz"
    broken.write_bytes(b"PK no zip")
    with pytest.raises(ConfigError, match=r"broken\.npz' is not an \.npz file"):
        model_inputs(_view(), "auto", broken)


def test_labels_and_types_of_the_data() -> None:
    """Labels are ignored, numbers are converted to the model's type."""
    data = {"x": np.zeros((5, 3, 8, 8), np.float64), "y": np.zeros(5, np.int64)}
    (batch,) = model_inputs(_view(), "auto", data).batches
    assert list(batch) == ["x"]
    assert batch["x"].dtype == np.float32
    assert "y" in data  # left untouched


def test_an_npz_file_in_place_of_a_kind(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=random_input(chain_conv(0), 3, batch=9)["x"])
    result = onnxfold.fold(chain_conv(0), channel_ratio=0.5, inputs=str(path))
    assert result.report.inputs is not None
    assert (result.report.inputs.kind, result.report.inputs.samples) == ("data", 9)
    with pytest.raises(ConfigError, match=r"inputs='photos' is not one of auto, deep-inversion, dead-leaves, noise"):
        onnxfold.fold(chain_conv(0), inputs="photos")


def test_a_fixed_batch() -> None:
    view = load(_fixed_batch(chain_conv(0), 4))
    assert [len(b["x"]) for b in model_inputs(view, "noise", samples=13).batches] == [4, 4, 4]
    assert [len(b["x"]) for b in model_inputs(view, "noise", samples=2).batches] == [4]
    data = {"x": np.zeros((8, 3, 8, 8), np.float32)}
    assert [len(b["x"]) for b in model_inputs(view, "auto", data).batches] == [4, 4]
    with pytest.raises(ConfigError, match="array 'x' has 7 samples, the model's fixed batch is 4"):
        model_inputs(view, "auto", {"x": data["x"][:7]})


def test_inputs_of_different_lengths() -> None:
    ids = np.zeros((4, 5), np.int64)
    with pytest.raises(ConfigError, match="the arrays of the data have different numbers of samples"):
        model_inputs(load(_embedding()), "auto", {"ids": ids, "mask": ids[:3]})


# -- seeds, splits, other inputs than images -------------------------------------------------------


@pytest.mark.parametrize("kind", ["dead-leaves", "noise"])
def test_seeds(kind: str) -> None:
    a, b, c = (_all(model_inputs(_view(), kind, samples=8, seed=seed)) for seed in (3, 3, 4))
    np.testing.assert_array_equal(a, b)
    assert np.abs(a - c).max() > 0.1


def test_split_holds_a_quarter_out() -> None:
    inputs = model_inputs(_view(), "noise", samples=512)
    seen, held_out = inputs.split()
    assert (seen.samples, held_out.samples) == (384, 128)
    np.testing.assert_array_equal(np.concatenate([_all(seen), _all(held_out)]), _all(inputs))
    assert seen.reason == "requested; 384 of 512 fitted on"
    assert held_out.reason == "requested; 128 of 512 held out"
    with pytest.raises(ConfigError, match="fixed batch leaves too few"):
        model_inputs(load(_fixed_batch(chain_conv(0), 8)), "noise", samples=24).split()


@pytest.mark.parametrize("samples", [128, 40])
def test_few_samples_of_a_free_batch_can_be_split(samples: int) -> None:
    """Batches are a matter of memory; deep inversion makes no more than two where a network is large."""
    seen, held_out = model_inputs(_view(), "noise", samples=samples).split()
    assert seen.samples + held_out.samples == samples
    assert held_out.samples == pytest.approx(samples / 4, rel=0.3)


@pytest.mark.parametrize("words", [2, 11, 300])
def test_ids_lie_in_their_table(words: int) -> None:
    inputs = model_inputs(load(_embedding(words)), "dead-leaves", samples=64)
    ids, mask = _all(inputs, "ids"), _all(inputs, "mask")
    assert ids.dtype == mask.dtype == np.int64
    assert ids.min() >= 0
    assert words / 2 <= ids.max() + 1 <= words
    assert set(np.unique(mask)) <= {0, 1}
    assert inputs.images is None


def test_signals_are_smooth_and_vectors_are_not_images() -> None:
    signal = _all(model_inputs(load(conv1d(0)), "dead-leaves", samples=64))
    assert signal.shape == (64, 3, 16)
    assert np.corrcoef(signal[..., 1:].ravel(), signal[..., :-1].ravel())[0, 1] > 0.2
    assert signal.std() == pytest.approx(1.0, abs=0.05)
    assert model_inputs(load(mlp(0)), "dead-leaves", samples=8).images is None


def test_images_are_what_can_be_shown() -> None:
    inputs = model_inputs(_view(), "dead-leaves", samples=70)
    assert inputs.images is not None
    assert inputs.images.shape == (inputs.samples, 3, 8, 8)


def test_channels_last_are_found() -> None:
    """Images of a model that reads them with the channels last vary smoothly along its spatial axes."""
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16, 16, 3])
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 16, 16, 3])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [value], [output])
    view = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    (batch,) = synthetic_inputs(view, samples=16)
    x = batch["x"]
    assert x.shape == (16, 16, 16, 3)
    for a, b in ((x[:, 1:], x[:, :-1]), (x[:, :, 1:], x[:, :, :-1])):
        assert np.corrcoef(a.ravel(), b.ravel())[0, 1] > 0.5


@pytest.mark.parametrize(("side", "length"), [(8, 64), (512, 4)])
def test_a_walk_takes_batches_that_fit(side: int, length: int) -> None:
    """Small images stay together; of large ones only a few are walked at a time, and none is lost."""
    value, output = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4, side, side]) for name in ("x", "y")
    )
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [value], [output])
    view = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    inputs = model_inputs(view, "dead-leaves", samples=64)
    walked = inputs.walked(view)
    assert {len(batch["x"]) for batch in walked[:-1]} | {len(walked[0]["x"])} == {length}
    assert np.array_equal(np.concatenate([batch["x"] for batch in walked]), _all(inputs))
    assert replace(inputs, fixed_batch=True).walked(view) is inputs.batches


def test_samples_are_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[int] = []

    def counted(view: GraphView, cost: float, requested: input_plan.InputRequest) -> tuple[int, tuple[str, ...]]:
        count, notes = input_plan.planned_samples(view, cost, requested)
        planned.append(count)
        return count, notes

    monkeypatch.setattr("onnxfold.inputs.make_inputs.planned_samples", counted)
    assert model_inputs(_view(), "auto", samples=4, steps=(1,)).samples == 4
    assert planned == [4]


def test_one_sample_at_a_time_where_a_state_lets_no_more_pass() -> None:
    """The first axis of a state of two layers is no batch; its second one is, and is fixed to one sample."""
    random = np.random.default_rng(0)
    shapes = {"w": (1, 24, 6), "r": (1, 24, 8), "b": (1, 48), "v": (5, 8), "u": (3, 5)}
    weights = [
        numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    weights += [numpy_helper.from_array(np.array([value], np.int64), f"at{value}") for value in (0, 1)]
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        helper.make_node("Slice", ["h0", "at0", "at1", "at0"], ["first"]),
        helper.make_node("GRU", ["t", "w", "r", "b", "", "first"], ["", "last"], hidden_size=8),
        helper.make_node("Squeeze", ["last", "at0"], ["flat"]),
        helper.make_node("Gemm", ["flat", "v"], ["hidden"], transB=1),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("Gemm", ["active", "u"], ["y"], transB=1),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "frames", 6])
    h0 = helper.make_tensor_value_info("h0", TensorProto.FLOAT, [2, 1, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])
    graph = helper.make_graph(nodes, "states", [x, h0], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    report = onnxfold.fold(model, sparsity=0.05, samples=8, allocation="uniform").report
    assert report.fidelity is not None
    assert any("x:1,64,6, because it takes one sample at a time" in n for n in report.notes)
