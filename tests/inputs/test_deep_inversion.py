"""Deep inversion: what it minimises, what it leaves alone, where it refuses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from onnxfold.errors import ConfigError, UnsupportedModelError
from onnxfold.graph.files.load import load
from onnxfold.graph.view import GraphView
from onnxfold.inputs.inversion import deep_inversion as module
from onnxfold.inputs.inversion import descent, invert
from onnxfold.inputs.inversion.deep_inversion import (
    Inversion,
    InversionSettings,
    deep_inversion,
    fused_layers,
    obstacle,
)
from onnxfold.inputs.inversion.descent import total_variation
from onnxfold.torch_graph import availability
from testing.graph_builder import GraphBuilder
from testing.inversion import ENDLESS as SETTINGS
from testing.inversion import of_steps
from testing.models import ALL_MODELS, Array, random_input, run


def _start(model: onnx.ModelProto, samples: int = 24, seed: int = 0) -> dict[str, Array]:
    return random_input(model, seed, samples)


def _invert(
    model: onnx.ModelProto, start: object = None, settings: InversionSettings = SETTINGS, **options: float
) -> Inversion:
    settings = of_steps(options.pop("steps"), settings) if "steps" in options else settings
    return deep_inversion(load(model), start or _start(model), settings=settings, **options)  # type: ignore[arg-type]


def _statistics(model: onnx.ModelProto, feeds: dict[str, Array]) -> float:
    """The first term of the objective as the module's docstring states it, through onnxruntime and numpy."""
    tapped = onnx.ModelProto()
    tapped.CopyFrom(model)
    norms = [n for n in tapped.graph.node if n.op_type == "BatchNormalization"]
    view = load(model)
    del tapped.graph.output[:]
    tapped.graph.output.extend(helper.make_empty_tensor_value_info(n.input[0]) for n in norms)
    total = 0.0
    for node, x in zip(norms, run(tapped, feeds), strict=True):
        samples = np.moveaxis(x, 1, -1).reshape(-1, x.shape[1]).astype(np.float64)
        mean, variance = (view.weight(n).astype(np.float64) for n in node.input[3:5])
        deviation = np.sqrt(variance)
        total += float((((samples.mean(0) - mean) / deviation) ** 2).mean())
        total += float(((samples.std(0) / deviation - 1) ** 2).mean())
    return total


@pytest.mark.parametrize("name", ["chain_conv", "residual", "mlp_bn", "conv1d", "conv3d", "preact_residual"])
def test_statistics_come_closer(name: str) -> None:
    model = ALL_MODELS[name](0)
    start = {"x": 2 * _start(model)["x"] + 1}
    result = _invert(model, start, replace(SETTINGS, learning_rate=0.1), steps=20)
    assert result.initial.get("statistics") == pytest.approx(_statistics(model, start), rel=0.02)
    assert result.final.get("statistics") == pytest.approx(_statistics(model, result.inputs[0]), rel=0.02)
    assert result.final.get("statistics") < 0.6 * result.initial.get("statistics")  # type: ignore[operator]
    assert result.steps == 20
    assert (float(total_variation(torch.from_numpy(start["x"]))) == 0.0) == (name == "mlp_bn")  # tabular


def _unevenness(model: onnx.ModelProto, feeds: dict[str, Array]) -> float:
    """The first term without normalisations, as the module's docstring states it."""
    tapped = onnx.ModelProto()
    tapped.CopyFrom(model)
    layers = [n for n in tapped.graph.node if n.op_type == "Conv"]
    del tapped.graph.output[:]
    tapped.graph.output.extend(helper.make_empty_tensor_value_info(n.output[0]) for n in layers)
    total = 0.0
    for x in run(tapped, feeds):
        samples = np.moveaxis(x, 1, -1).reshape(-1, x.shape[1]).astype(np.float64)
        mean, deviation = samples.mean(0), samples.std(0)
        middle, typical = (np.sort(v)[(len(v) - 1) // 2] for v in (mean, deviation))
        total += float(np.log1p(((mean - middle) / typical) ** 2).mean())
        total += float(np.log1p(np.log(deviation / typical) ** 2).mean())
    return total


def test_channels_of_layers_with_a_fused_normalisation_become_even() -> None:
    model = ALL_MODELS["chain_conv_plain"](0)
    start = {"x": 2 * _start(model)["x"] + 1}
    result = _invert(model, start, replace(SETTINGS, learning_rate=0.1), steps=20)
    assert result.initial.get("statistics") is None
    assert result.initial.get("evenness") == pytest.approx(_unevenness(model, start), rel=0.02)
    assert result.final.get("evenness") == pytest.approx(_unevenness(model, result.inputs[0]), rel=0.02)
    assert result.final.get("evenness") < 0.8 * result.initial.get("evenness")  # type: ignore[operator]


def test_layers_without_a_bias_hold_no_fused_normalisation() -> None:
    assert [n.op_type for n, _ in fused_layers(load(ALL_MODELS["chain_conv_plain"](0)))] == ["Conv"] * 2
    assert fused_layers(load(ALL_MODELS["mlp"](0))) == []
    assert [_invert(ALL_MODELS[name](0), steps=1).final.get("evenness") for name in ("chain_conv", "mlp")] == [
        None,
        None,
    ]


def test_class_scores_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing else counts the network ends up naming every class equally often."""
    model = ALL_MODELS["chain_conv_plain"](0)
    start = _start(model, 25)
    monkeypatch.setattr(descent, "WEIGHTS", descent.WEIGHTS | {"class_scores": 1.0, "variation": 0.0, "evenness": 0.0})
    settings = replace(SETTINGS, learning_rate=0.3)
    result = _invert(model, start, settings, steps=60)
    assert result.initial.get("statistics") is None
    assert result.final.get("class_scores") < 0.3 * result.initial.get("class_scores")  # type: ignore[operator]
    before, after = (np.bincount(run(model, feeds)[0].argmax(1), minlength=5) for feeds in (start, result.inputs[0]))
    assert np.minimum(after, 5).sum() >= 21 > np.minimum(before, 5).sum()


def test_scores_behind_a_softmax_are_read_in_front_of_it() -> None:
    plain = ALL_MODELS["chain_conv_plain"](0)
    soft = onnx.ModelProto()
    soft.CopyFrom(plain)
    last = soft.graph.node[-1]
    last.output[0] = "logits"
    soft.graph.node.append(helper.make_node("Softmax", ["logits"], ["y"], axis=1))
    assert _invert(soft, steps=2).final == _invert(plain, steps=2).final


@pytest.mark.parametrize("samples", [4, "n"])
def test_rows_that_are_no_samples_are_no_class_scores(samples: int | str) -> None:
    """A constant on the left of a product leaves the samples on another axis, or on none."""
    graph = GraphBuilder("left", 0, (4,))
    graph.constant("w", graph.normal(3, 4))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [samples, 4])
    if samples == 4:
        nodes = [helper.make_node("MatMul", ["w", "x"], ["y"])]
    else:
        nodes = [helper.make_node("ReduceMean", ["x"], ["y"], axes=[0])]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3 if samples == 4 else 1, 4])
    made = helper.make_graph(nodes, "g", [x], [y], graph.initializers)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(UnsupportedModelError, match="class scores"):
        _invert(model, {"x": np.ones((4, 4), np.float32)}, steps=1)
    if samples == 4:
        assert "class scores" in obstacle(load(model))


def test_without_class_scores() -> None:
    model = ALL_MODELS["autoencoder"](0)
    result = _invert(model, steps=10)
    assert result.final.get("class_scores") is None
    assert result.final.get("statistics") < result.initial.get("statistics")  # type: ignore[operator]


def test_bytes_depend_on_seed_and_start_only() -> None:
    model = ALL_MODELS["residual"](0)
    first, again, other = (_invert(model, steps=3, seed=seed).inputs[0]["x"] for seed in (0, 0, 1))
    assert first.tobytes() == again.tobytes()
    assert first.tobytes() != other.tobytes()


def test_start_and_graph_are_left_alone() -> None:
    model = ALL_MODELS["residual"](0)
    start, view = _start(model), load(model)
    copy = start["x"].copy()
    deep_inversion(view, start, settings=of_steps(2, InversionSettings()))
    np.testing.assert_array_equal(start["x"], copy)
    assert view.model.SerializeToString() == load(model).model.SerializeToString()


def test_batches_come_back_as_they_were() -> None:
    """Sizes of batches are the caller's; how many samples are optimised together is not."""
    model = ALL_MODELS["chain_conv"](0)
    whole = _start(model, 20)["x"]
    batches = [{"x": part} for part in np.split(whole, [3, 11])]
    result = _invert(model, batches, replace(SETTINGS, batch=10), steps=3)
    assert [len(b["x"]) for b in result.inputs] == [3, 8, 9]
    assert (len(result.steps_per_batch), result.steps) == (2, 6)
    apart = [_invert(model, {"x": part}, replace(SETTINGS, batch=10), steps=0) for part in (whole[:10], whole[10:])]
    mean = np.mean([r.initial.get("statistics") for r in apart])  # type: ignore[arg-type]
    assert result.initial.get("statistics") == pytest.approx(mean, rel=1e-4)


def test_memory_bounds_the_batch() -> None:
    model = ALL_MODELS["chain_conv"](0)
    assert len(_invert(model, steps=0).steps_per_batch) == 1
    small = _invert(model, settings=replace(SETTINGS, memory_bytes=1 << 16), steps=0)
    assert 2 <= len(small.steps_per_batch) < 24


def _with_fixed_batch(model: onnx.ModelProto, size: int) -> onnx.ModelProto:
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.shape.dim[0].dim_value = size
    return model


def test_a_declared_batch_that_nothing_depends_on_does_not_bind() -> None:
    result = _invert(_with_fixed_batch(ALL_MODELS["chain_conv"](0), 2), _start(ALL_MODELS["chain_conv"](0)), steps=1)
    assert len(result.steps_per_batch) == 1


@pytest.mark.parametrize("insists", [False, True])
def test_a_batch_binds_where_the_graph_insists_on_it(insists: bool) -> None:
    """A Reshape that states it can copy it; a constant with a value for every sample of a batch cannot."""
    model = _with_fixed_batch(ALL_MODELS["flatten_conv"](0), 4)
    flatten = next(node for node in model.graph.node if node.op_type == "Flatten")
    flatten.op_type = "Reshape"
    del flatten.attribute[:]
    flatten.input.append("target")
    numbers = {"target": np.array([4, -1], np.int64)}
    if insists:
        numbers["shift"] = np.arange(4, dtype=np.float32).reshape(4, 1, 1, 1)
        model.graph.node.insert(0, helper.make_node("Add", [model.graph.input[0].name, "shift"], ["shifted"]))
        reader = next(node for node in model.graph.node[1:] if node.input[0] == model.graph.input[0].name)
        reader.input[0] = "shifted"
    model.graph.initializer.extend(onnx.numpy_helper.from_array(values, name) for name, values in numbers.items())
    result = _invert(model, [_start(model, 4, seed) for seed in range(3)], steps=2)
    assert len(result.steps_per_batch) == (3 if insists else 1)
    assert result.final.get("statistics") < result.initial.get("statistics")  # type: ignore[operator]


def _two_inputs(second: str) -> onnx.ModelProto:
    """A network whose second input is an index per sample, a scalar, or an image that a normalisation does not see."""
    g = GraphBuilder("two_inputs", 0, (3, 6, 6))
    h = g.relu(g.conv_bn("x", 4))
    if second == "ids":
        table = g.constant("table", g.normal(7, 4))
        g.shapes["z"] = ()
        row = g.node("Gather", [table, "z"], [4])
        h = g.mul(h, g.node("Unsqueeze", [row, g.constant("axes", np.array([2, 3], np.int64))], [4, 1, 1]))
    elif second == "scalar":
        h = g.node("Mul", [h, "z"], g.shapes[h])
    else:
        g.shapes["z"] = (3, 6, 6)
        h = g.add(h, g.conv("z", 4))
    g.output(g.head(g.batch_norm(h) if second != "image" else h))
    model = onnx.ModelProto()
    graph = helper.make_graph(
        g.nodes,
        "two_inputs",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 6, 6]),
            helper.make_tensor_value_info(
                "z", TensorProto.INT64 if second == "ids" else TensorProto.FLOAT,
                {"ids": ["batch"], "scalar": [], "image": ["batch", 3, 6, 6]}[second],
            ),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 5])],
        g.initializers,
    )  # fmt: skip
    model.CopyFrom(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    return model


@pytest.mark.parametrize("second", ["ids", "scalar", "image"])
def test_only_float_samples_are_optimised(second: str) -> None:
    model = _two_inputs(second)
    random = np.random.default_rng(0)
    batches = []
    for size in (5, 7):
        x = random.standard_normal((size, 3, 6, 6)).astype(np.float32)
        z = {
            "ids": random.integers(0, 7, size),
            "scalar": np.float32(0.7).reshape(()),
            "image": random.standard_normal(x.shape).astype(np.float32),
        }[second]
        batches.append({"x": x, "z": z})
    result = _invert(model, batches, steps=4)
    for before, after in zip(batches, result.inputs, strict=True):
        assert not np.array_equal(before["x"], after["x"])
        assert np.array_equal(before["z"], after["z"]) == (second != "image")
        assert after["z"].dtype == before["z"].dtype
    assert result.final.get("statistics") < result.initial.get("statistics")  # type: ignore[operator]


def test_a_flat_loss_ends_it() -> None:
    model = ALL_MODELS["chain_conv"](0)
    endless = replace(SETTINGS, window=5, learning_rate=1e-9, settling=0.1)
    assert _invert(model, settings=endless, steps=30).steps == 30
    # Two windows, and a tenth of the steps to settle.
    assert _invert(model, settings=replace(endless, tolerance=0.5), steps=30).steps == 12


def test_batches_share_the_time() -> None:
    model = ALL_MODELS["chain_conv"](0)
    result = _invert(model, settings=replace(SETTINGS, batch=12, seconds=0.0), steps=8)
    assert (result.steps_per_batch, result.planned, result.cut) == ((2, 2), 8, True)
    again = _invert(model, settings=replace(SETTINGS, batch=12, seconds=0.0, exact_steps=(2, 2)), steps=8)
    assert (again.steps_per_batch, again.cut) == ((2, 2), False)
    for a, b in zip(result.inputs, again.inputs, strict=True):
        np.testing.assert_array_equal(a["x"], b["x"])
    assert _invert(model, settings=replace(SETTINGS, batch=12, exact_steps=(3,)), steps=8).steps_per_batch == (3, 3)
    with pytest.raises(ConfigError, match="3 numbers of inversion steps are given for 2 batch"):
        _invert(model, settings=replace(SETTINGS, batch=12, exact_steps=(1, 2, 3)))


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_do_not_change_what_is_computed(threads: int) -> None:
    model = ALL_MODELS["residual"](0)
    one, more = (_invert(model, steps=4, threads=n).inputs for n in (1, threads))
    np.testing.assert_array_equal(one[0]["x"], more[0]["x"])


def test_the_end_is_quiet() -> None:
    """With a learning rate that falls to zero, inputs do not move as far."""
    model = ALL_MODELS["chain_conv"](0)
    start = _start(model)["x"]
    falls, stays = (replace(SETTINGS, settling=part) for part in (1.0, 0.0))
    after = {n: _invert(model, {"x": start}, falls, steps=n).inputs[0]["x"] for n in (1, 8)}
    steady = {n: _invert(model, {"x": start}, stays, steps=n).inputs[0]["x"] for n in (1, 8)}
    assert np.abs(after[1] - start).max() == pytest.approx(0.05, rel=0.01)
    assert np.abs(after[8] - start).mean() < 0.8 * np.abs(steady[8] - start).mean()
    np.testing.assert_array_equal(after[1], steady[1])


def test_threads_are_set_back() -> None:
    before = torch.get_num_threads()
    seen: list[int] = []

    def progress(text: str, done: int = 0, total: int = 0) -> None:
        seen.append(torch.get_num_threads())

    model = ALL_MODELS["chain_conv"](0)
    deep_inversion(load(model), _start(model), threads=before + 1, settings=of_steps(1, SETTINGS), progress=progress)
    assert seen == [before + 1]
    assert torch.get_num_threads() == before


def test_progress_counts_all_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invert, "_workers", lambda *_: 1)  # beside each other, they are told of by time
    told: list[tuple[int, int]] = []
    model = ALL_MODELS["chain_conv"](0)
    settings = replace(SETTINGS, batch=12)
    deep_inversion(load(model), _start(model), settings=of_steps(2, settings), progress=lambda _, *n: told.append(n))
    assert told == [(i, 4) for i in range(4)]


def _nothing_to_go_by() -> GraphView:
    g = GraphBuilder("plain", 0, (3, 8, 8))
    g.output(g.sigmoid(g.conv("x", 3)))
    return load(g.build())


def _recurrent() -> GraphView:
    model = ALL_MODELS["chain_conv"](0)
    model.graph.node.append(helper.make_node("NonZero", ["x"], ["places"], name="which"))
    model.graph.output.append(helper.make_tensor_value_info("places", TensorProto.INT64, [4, None]))
    return load(model)


@pytest.mark.parametrize(
    ("build", "words"), [(_nothing_to_go_by, "neither BatchNormalization nor class scores"), (_recurrent, "'which'")]
)
def test_what_stands_in_the_way_is_said(build: Callable[[], GraphView], words: str) -> None:
    view = build()
    assert words in obstacle(view)
    with pytest.raises(UnsupportedModelError, match="deep inversion is not possible") as raised:
        deep_inversion(view, {"x": np.zeros((2, 3, 8, 8), np.float32)})
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_nothing_stands_in_the_way_of_a_classifier() -> None:
    assert obstacle(load(ALL_MODELS["residual"](0))) == ""


def test_no_gradient_is_said() -> None:
    g = GraphBuilder("steps", 0, (7,))
    g.output(g.gemm(g.node("Cast", [g.node("Cast", ["x"], [7], to=TensorProto.INT64)], [7], to=TensorProto.FLOAT), 5))
    with pytest.raises(UnsupportedModelError, match="no gradient"):
        _invert(g.build(), steps=1)


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "find_spec", lambda name: None)
    model = ALL_MODELS["residual"](0)
    assert "pip install torch" in obstacle(load(model))
    with pytest.raises(ConfigError, match=r"pip install torch"):
        deep_inversion(load(model), _start(model))


def test_importing_does_not_import_torch() -> None:
    code = f"import sys, {module.__name__}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
