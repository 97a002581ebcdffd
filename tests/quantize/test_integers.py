"""Models of few bits: the numbers that integers and half floats stand for, folds of them, and as few bits again."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.quantize.integers import Integers, dequantize
from testing import models
from testing.compare import relative_difference
from testing.graph_builder import GraphBuilder
from testing.models import run
from testing.quick import quick_fold


def qdq(model: onnx.ModelProto, _: Path) -> onnx.ModelProto:
    # Quantisers state shapes of tensors that are weights while the model is folded.
    return onnx.shape_inference.infer_shapes(quick_fold(model, 0.0, dtype="int8").model)


def dynamic(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    onnx.save(model, str(folder / "float.onnx"))
    quantize_dynamic(folder / "float.onnx", folder / "int8.onnx", weight_type=QuantType.QUInt8)
    return onnx.load(folder / "int8.onnx")


def halves(model: onnx.ModelProto, _: Path) -> onnx.ModelProto:
    """Return a model whose weights are stored in two bytes, and cast to float32 before they are read."""
    made = copy.deepcopy(model)
    nodes = []
    for kind, tensor in zip(cycle(("float16", "bfloat16")), made.graph.initializer, strict=False):
        if tensor.data_type == onnx.TensorProto.FLOAT:
            name = tensor.name
            values = numpy_helper.to_array(tensor).astype(kind)
            tensor.CopyFrom(numpy_helper.from_array(values, f"{name}_{kind}"))
            nodes.append(onnx.helper.make_node("Cast", [tensor.name], [name], to=onnx.TensorProto.FLOAT))
    made.graph.node.extend([*nodes, *(made.graph.node.pop(0) for _ in range(len(made.graph.node)))])
    return made


FORMS = [qdq, dynamic, halves]
FEEDS = {"x": np.random.default_rng(3).standard_normal((4, 3, 8, 8)).astype(np.float32)}
Form = Callable[[onnx.ModelProto, Path], onnx.ModelProto]


def _kinds(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


@given(st.integers(0, 999), st.booleans(), st.booleans())
def test_numbers_are_held_within_a_step(seed: int, per_channel: bool, has_zeros: bool) -> None:
    random = np.random.default_rng(seed)
    shape = (4,) if per_channel else ()
    lowest, kind = (0, np.uint8) if has_zeros else (-64, np.int8)
    numbers = random.integers(lowest, 65, (4, 3, 2)).astype(kind)
    zero = random.integers(1, 60, shape).astype(kind) if has_zeros else np.zeros(shape, kind)
    old = Integers(numbers, random.uniform(0.01, 1.0, shape).astype(np.float32), zero, 0 if per_channel else None)
    assert old.hold(old.values) is old
    if not per_channel:
        part = old.hold(old.values[1:3])
        np.testing.assert_array_equal(part.numbers, numbers[1:3])
        assert (part.scale, part.zero) == (old.scale, old.zero)
    wanted = random.standard_normal((2, 3, 2)).astype(np.float32)
    made = old.hold(wanted)
    assert made.numbers.dtype == kind
    assert made.scale.shape == ((2,) if per_channel else ())
    assert numbers.min() <= made.numbers.min() or not has_zeros
    assert np.abs(made.numbers.astype(int)).max() <= max(np.abs(numbers.astype(int)).max(), 1)
    steps = made.scale.reshape(-1, 1, 1) if per_channel else made.scale
    # Where a range has few integers, rounding the zero point takes half a step more.
    assert (np.abs(made.values - wanted) <= 1.01 * steps).all()


def test_a_range_without_negative_numbers_gets_them() -> None:
    old = Integers(np.array([0, 255], np.uint8), np.float32(0.1), np.uint8(0))
    wanted = np.array([-1.0, 2.0, 0.5], np.float32)
    assert np.abs(old.hold(wanted).values - wanted).max() <= 3 / 255
    # Without a zero point there is no place for them.
    np.testing.assert_allclose(Integers(old.numbers, old.scale).hold(wanted).values, [0, 2, 0.5], atol=0.01)


def test_scales_that_do_not_fit_are_not_read() -> None:
    numbers = np.zeros((2, 3), np.int8)
    assert Integers(numbers, np.ones(3, np.float32), np.zeros(3, np.int8), 1).are_sound
    assert not Integers(numbers, np.ones(3, np.float32), np.zeros(3, np.int8), 0).are_sound
    assert not Integers(numbers, np.ones(3, np.float32), np.zeros(2, np.int8), 1).are_sound
    assert not Integers(np.array(1, np.int8), np.ones(3, np.float32)).are_sound
    assert not Integers(numbers.astype(np.float32), np.float32(1)).are_sound


@pytest.mark.parametrize("form", FORMS)
def test_what_is_opened_computes_nearly_the_same_and_closes_to_the_same_bytes(form: Form, tmp_path: Path) -> None:
    model = form(models.chain_conv(0), tmp_path)
    view = load(model)
    stored = dequantize(view)
    assert stored is not None
    plain = to_model(view)
    assert not _kinds(plain).keys() & {"ConvInteger", "MatMulInteger", "DynamicQuantizeLinear"}
    assert not any(node.op_type == "DequantizeLinear" and view.is_weight(node.input[0]) for node in view.nodes)
    feeds = FEEDS
    assert relative_difference(run(model, feeds), run(plain, feeds)) < 0.05
    stored.store_again(view)
    again = to_model(view)
    assert _kinds(again) == _kinds(model)
    np.testing.assert_array_equal(run(again, feeds)[0], run(model, feeds)[0])
    old, new = ({t.name: numpy_helper.to_array(t) for t in m.graph.initializer} for m in (model, again))
    assert old.keys() == new.keys()
    for name, values in old.items():
        np.testing.assert_array_equal(new[name], values)


#: The bias of a channel, and factors of its row and of its column; whether it may go.
CHANNELS = {
    "zero behind its Relu": (-1.0, 0.0, 1.0, True),
    "the largest number of its activation, always": (60.0, 0.0, 1.0, False),
    "read by nothing but the range": (60.0, 1.0, 0.0, False),
}


@pytest.mark.parametrize("channel", CHANNELS)
def test_without_loss_ranges_of_activations_stay(channel: str, tmp_path: Path) -> None:
    g = GraphBuilder("net", 0, (3, 8, 8))
    g.output(g.head(g.relu(g.conv(g.relu(g.conv("x", 6)), 8, kernel=1))))
    plain, (bias, of_row, of_column, may_go) = g.build(), CHANNELS[channel]
    rows, columns = (t for t in plain.graph.initializer if len(t.dims) == 4)
    biases = next(t for t in plain.graph.initializer if list(t.dims) == [6])
    for tensor, place, change in ((rows, 2, of_row), (biases, 2, 0.0), (columns, (slice(None), 2), of_column)):
        values = numpy_helper.to_array(tensor).copy()
        values[place] = values[place] * change + (bias if tensor is biases else 0.0)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    model = dynamic(plain, tmp_path)
    result = quick_fold(model, lossless=True)
    assert result.report.groups[0].folded_width == 6 - may_go
    np.testing.assert_array_equal(run(result.model, FEEDS)[0], run(model, FEEDS)[0])
    before, after = (
        next(numpy_helper.to_array(t) for t in m.graph.initializer if t.data_type == 2 and t.dims[1:] == [3, 3, 3])
        for m in (model, result.model)
    )
    np.testing.assert_array_equal(after, np.delete(before, [2] if may_go else [], axis=0))


def _two_lstms() -> onnx.ModelProto:
    """Return two bidirectional LSTMs in a row, and a matrix behind them."""
    random = np.random.default_rng(0)
    shapes = {"w1": (2, 64, 5), "r1": (2, 64, 16), "w2": (2, 64, 32), "r2": (2, 64, 16), "head": (32, 4)}
    weights = {name: (0.3 * random.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}
    text = """<ir_version: 8, opset_import: ["" : 17]>
    lstms (float[6, 2, 5] x) => (float[6, 2, 4] y) <float[2, 64, 5] w1, float[2, 64, 16] r1, float[2, 64, 32] w2,
        float[2, 64, 16] r2, float[32, 4] head, int64[3] both = {0, 0, -1}> {
      h1 = LSTM<direction = "bidirectional", hidden_size = 16>(x, w1, r1)
      t1 = Transpose<perm = [0, 2, 1, 3]>(h1)
      x2 = Reshape(t1, both)
      h2 = LSTM<direction = "bidirectional", hidden_size = 16>(x2, w2, r2)
      t2 = Transpose<perm = [0, 2, 1, 3]>(h2)
      x3 = Reshape(t2, both)
      y = MatMul(x3, head)
    }"""
    model = onnx.parser.parse_model(text)
    kept = [t for t in model.graph.initializer if t.name not in weights]
    del model.graph.initializer[:]
    model.graph.initializer.extend([*kept, *(numpy_helper.from_array(v, name) for name, v in weights.items())])
    return model


def test_an_lstm_of_integers_is_folded_as_one_of_floats(tmp_path: Path) -> None:
    model = dynamic(_two_lstms(), tmp_path)
    assert _kinds(model)["DynamicQuantizeLSTM"] == 2
    feeds = {"x": np.random.default_rng(1).standard_normal((6, 2, 5)).astype(np.float32)}
    view = load(model)
    stored = dequantize(view)
    assert stored is not None
    plain = to_model(view)
    assert _kinds(plain)["LSTM"] == 2
    assert relative_difference(run(model, feeds), run(plain, feeds)) < 0.05
    stored.store_again(view)
    np.testing.assert_array_equal(run(to_model(view), feeds)[0], run(model, feeds)[0])
    result = quick_fold(model, 0.3)
    assert result.report.sparsity == pytest.approx(0.3, abs=0.06)
    assert _kinds(result.model) == _kinds(model)
    assert relative_difference(run(result.model, feeds), run(quick_fold(plain, 0.3).model, feeds)) < 0.1


@pytest.mark.parametrize("form", FORMS)
def test_a_fold_of_integers_is_nearly_the_fold_of_floats_quantised(form: Form, tmp_path: Path) -> None:
    model = form(models.chain_conv(0, (24, 32)), tmp_path)
    result = quick_fold(model, 0.3)
    assert result.report.sparsity == pytest.approx(0.3, abs=0.05)
    assert result.report.after.size_bytes < result.report.before.size_bytes
    assert any(
        f"{16 if form is halves else 8} bits" in note and "are stored as before" in note for note in result.report.notes
    )
    assert _kinds(result.model)["ConvInteger"] == _kinds(model)["ConvInteger"]
    floats = [t.name for t in result.model.graph.initializer if t.data_type == 1 and np.prod(t.dims) > 64]
    assert floats == [t.name for t in model.graph.initializer if t.data_type == 1 and np.prod(t.dims) > 64]
    view = load(model)
    dequantize(view)
    floats_fold = quick_fold(to_model(view), 0.3)
    feeds = FEEDS
    whole, expected, made = (run(one, feeds)[0] for one in (model, floats_fold.model, result.model))
    assert np.linalg.norm(made - expected) <= max(np.linalg.norm(expected - whole), 0.05 * np.linalg.norm(whole))
