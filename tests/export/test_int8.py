"""int8 exports: constants that the quantiser takes, ranges of given samples, and what is refused."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxfold.errors import ConfigError, ExportError
from onnxfold.export import export_model, quantize
from onnxfold.export.parity import TFLiteInterpreter, reference_inputs, run_reference, set_apart
from onnxfold.export.tflite.convert import convert
from onnxfold.graph.files.load import load
from onnxfold.inputs.images import synthetic
from testing.graph_builder import GraphBuilder
from tests.export.command import run
from tests.export.test_tflite import chain

pytest.importorskip("ai_edge_litert")
pytest.importorskip("ai_edge_quantizer")


def _samples(path: Path, model: Path, factor: float) -> Path:
    shape = [d.dim_value or 8 for d in onnx.load(model).graph.input[0].type.tensor_type.shape.dim]
    np.savez(path, x=factor * np.random.default_rng(0).standard_normal(shape).astype(np.float32))
    return path


def test_ranges_come_from_given_samples(model: Path, tmp_path: Path) -> None:
    wide = _samples(tmp_path / "wide.npz", model, 100.0)
    done = run(model, tmp_path / "net.tflite", "--dtype", "int8", "--calibration", wide)
    assert done.exit_code == 0, done.output
    assert "given samples" in done.output
    assert "SNR" in done.output


def test_an_export_that_is_too_noisy_is_refused(model: Path, tmp_path: Path) -> None:
    wide, narrow = (_samples(tmp_path / f"{f}.npz", model, f) for f in (100.0, 0.01))
    given = ("--dtype", "int8", "--calibration", wide, "--data", narrow)
    refused = run(model, tmp_path / "net.tflite", *given).exception
    assert isinstance(refused, ExportError)
    assert all(word in str(refused) for word in (" dB on ", "given samples", "--calibration", "float16", "--force"))
    assert not (tmp_path / "net.tflite").exists()
    assert run(model, tmp_path / "net.tflite", *given, "--force").exit_code == 0
    assert (tmp_path / "net.tflite").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"calibration": {}}, "dtype int8"),
        ({"calibration": {}, "dtype": "int8", "backend": "onnx2tf"}, "dtype int8"),
        ({"data": {}, "verify": False}, "no-verify"),
        ({"mean": 0.5, "std": 0.5}, "folder of images"),
        ({"data": {"z": np.zeros(3)}}, "no array 'x'"),
    ],
)
def test_samples_that_make_no_sense_are_refused(
    options: dict[str, object], words: str, model: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        export_model(model, tmp_path / "net.tflite", **options)  # type: ignore[arg-type]


def test_projects_take_no_samples(model: Path, tmp_path: Path) -> None:
    refused = run(model, tmp_path / "project", "--format", "arduino", "--calibration", model).exception
    assert isinstance(refused, ConfigError)


def test_constants_that_share_a_scale_have_the_rank_of_their_operand(tmp_path: Path) -> None:
    g = GraphBuilder("net", 0, (3, 8, 8))
    x = g.conv("x", 4)
    amounts = g.constant("amounts", np.array([0, 0, 1, 1, 0, 0, 1, 1]))
    x = g.node("Pad", [x, amounts, g.constant("fill", np.array(0.5, np.float32))], (4, 10, 10))
    x = g.node("Max", [x, g.constant("low", np.array(-0.5, np.float32))], (4, 10, 10))
    x = g.node("Clip", [x, g.constant("least", np.array(-0.25, np.float32))], (4, 10, 10))
    g.output(x)
    report = export_model(g.build(), tmp_path / "net.tflite", dtype="int8")
    assert report.operators["PADV2"] == 1
    assert report.operators["MAXIMUM"] == 2
    assert report.parity["snr_db"] > 30


def test_parts_that_nobody_reads_are_not_written(tmp_path: Path) -> None:
    g = GraphBuilder("net", 0, (4, 8, 8))
    x = g.conv("x", 6)
    g.nodes.append(helper.make_node("Split", [x], ["a", "b", "c"], axis=1, num_outputs=3))
    g.opset, g.shapes["a"] = 18, (2, 8, 8)
    g.output(g.conv("a", 4))
    report = export_model(g.build(), tmp_path / "net.tflite", dtype="int8")
    assert "SPLIT" not in report.operators
    assert report.parity["snr_db"] > 30


def test_networks_whose_activations_take_much_memory_get_fewer_samples_and_no_empty_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(synthetic, "ACTIVATION_BYTES", 1)
    batches = reference_inputs(load(chain("conv", "relu")), samples=100)
    assert sum(len(b["x"]) for b in batches) == 32
    assert all(len(b["x"]) == 4 for b in batches)


@pytest.mark.parametrize("form", ["product first", "gate first", "HardSigmoid"])
def test_hard_swish_is_one_operator(form: str, tmp_path: Path) -> None:
    g = GraphBuilder("net", 0, (3, 8, 8), opset=12)
    x = g.conv("x", 4)
    six, shape = g.constant("six", np.array(6, np.float32)), (4, 8, 8)
    gate = g.relu6(g.node("Add", [x, g.constant("three", np.array(3, np.float32))], shape))
    if form == "product first":
        y = g.node("Div", [g.node("Mul", [x, gate], shape), six], shape)
    elif form == "gate first":
        y = g.node("Mul", [x, g.node("Div", [gate, six], shape)], shape)
    else:
        y = g.node("Mul", [g.unary("HardSigmoid", x, alpha=1 / 6, beta=0.5), x], shape)
    g.output(y)
    report = export_model(g.build(), tmp_path / "net.tflite")
    assert report.operators["HARD_SWISH"] == 1
    assert not {"MUL", "DIV"} & report.operators.keys()


def test_maxima_are_padded_with_their_border(tmp_path: Path) -> None:
    g = GraphBuilder("net", 0, (3, 8, 8))
    x = g.conv("x", 4)  # some maxima are negative, so that zeros would change them
    g.output(g.node("MaxPool", [x], (4, 4, 4), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]))
    exact = export_model(g.build(), tmp_path / "net.tflite")
    assert exact.operators["MIRROR_PAD"] == 1
    assert "PADV2" not in exact.operators
    assert export_model(g.build(), tmp_path / "net.tflite", dtype="int8").parity["snr_db"] > 30


def test_what_int8_loses_most_in_stays_in_float32(tmp_path: Path) -> None:
    g = GraphBuilder("net", 0, (3, 8, 8))
    x = g.conv("x", 4)
    for _ in range(3):
        x = g.relu(g.conv(x, 4))
    # A difference of large numbers, of which 8 bits tell nothing.
    large = g.node("Add", [x, g.constant("large", np.array(1e4, np.float32))], (4, 8, 8))
    less = g.node("Sub", [large, g.constant("same", np.array(1e4 - 1, np.float32))], (4, 8, 8))
    for _ in range(6):
        less = g.relu(g.conv(less, 4))
    g.output(less)
    report = export_model(g.build(), tmp_path / "net.tflite", dtype="int8")
    assert report.parity["snr_db"] > 20
    assert any("2 of 12 operators stay in float32" in note for note in report.notes)
    assert any("int8 does 100% of the multiply-accumulates" in note for note in report.notes)
    assert any("'x' is int8" in note for note in report.notes)


@pytest.mark.parametrize("least", [0.0, 0.5])
def test_int8_does_half_of_the_products_at_least(least: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantize, "LEAST_INT8", least)
    g = GraphBuilder("net", 0, (8, 8, 8))
    large = g.conv("x", 4)
    x = g.node("Sub", [large, g.constant("same", np.array(1e4 - 1, np.float32))], (4, 8, 8))
    g.output(g.conv(x, 1))
    model = g.build()
    bias = next(i for i in model.graph.initializer if list(i.dims) == [4])
    bias.CopyFrom(numpy_helper.from_array(np.full(4, 1e4, np.float32), bias.name))  # of its sums 8 bits tell nothing
    if least:
        with pytest.raises(ExportError, match="signal-to-noise"):
            export_model(model, tmp_path / "net.tflite", dtype="int8")
    else:
        report = export_model(model, tmp_path / "net.tflite", dtype="int8")
        assert report.parity["snr_db"] > 20


def test_outputs_stay_in_float32_where_8_bits_do_not_hold_them(tmp_path: Path) -> None:
    g = GraphBuilder("net", 0, (3, 8, 8))
    x = g.sigmoid(g.node("Sub", [g.conv("x", 4), g.constant("much", np.array(7, np.float32))], (4, 8, 8)))
    g.output(x)  # hardly more than a step of the 256 between 0 and 1
    report = export_model(g.build(), tmp_path / "net.tflite", dtype="int8")
    assert report.parity["snr_db"] > 20
    assert "y" not in TFLiteInterpreter(tmp_path / "net.tflite").quantisation()
    assert any("int8 does 100%" in note for note in report.notes)


def test_samples_that_check_a_file_are_shown_to_nothing_else() -> None:
    view, samples = load(chain("conv")), {"x": np.arange(10.0).reshape(10, 1)}
    rest, check = set_apart(view, samples)
    assert check["x"].ravel().tolist() == [3, 7]
    assert rest["x"].ravel().tolist() == [0, 1, 2, 4, 5, 6, 8, 9]
    few = {"x": samples["x"][:3]}
    assert all(np.array_equal(part["x"], few["x"]) for part in set_apart(view, few))


def test_the_noise_that_is_foreseen_is_that_of_the_file(tmp_path: Path) -> None:
    view = load(chain("conv", "relu", "conv"))
    converted, path = convert(view), tmp_path / "net.tflite"
    path.write_bytes(converted.to_bytes(""))
    batches = reference_inputs(view)
    held = quantize.HeldOut(batches, run_reference(view, batches))
    whole, _ = quantize.ranges_of(converted, path, batches)
    search = quantize._Search(converted, path, held, 1.0)
    search.suffices(whole)
    foreseen, _ = search.measure_groups(whole, whole)
    assert sum(foreseen.values()) == pytest.approx(search.tries[0].noise, rel=0.5)


def test_a_gate_gets_the_range_that_it_tells_apart(tmp_path: Path) -> None:
    g = GraphBuilder("net", 0, (3, 8, 8))
    far = g.constant("far", np.array([500.0, 0, 0, 0], np.float32).reshape(4, 1, 1))
    x = g.node("Add", [g.conv("x", 4), far], (4, 8, 8))
    g.output(g.sigmoid(x))
    report = export_model(g.build(), tmp_path / "net.tflite", dtype="int8")
    assert not any("stay in float32" in note for note in report.notes)
    assert report.parity["snr_db"] > 30


def test_ranges_leave_out_what_few_values_reach(tmp_path: Path) -> None:
    g = GraphBuilder("net", 0, (3, 64, 64))
    g.output(g.conv("x", 4))
    onnx.save(g.build(), tmp_path / "net.onnx")
    samples = np.random.default_rng(0).standard_normal((40, 3, 64, 64)).astype(np.float32)
    samples[36, 0, 5, 5] = 300.0
    report = export_model(tmp_path / "net.onnx", tmp_path / "net.tflite", dtype="int8", calibration={"x": samples})
    assert report.parity["snr_db"] > 30
    assert not any("stay in float32" in note for note in report.notes)


def test_the_noisiest_operators_stay_in_float32_wherever_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, write = [], quantize._quantise_file
    monkeypatch.setattr(quantize, "_quantise_file", lambda *args: written.append(args) or write(*args))  # type: ignore[func-returns-value]
    g = GraphBuilder("net", 0, (3, 8, 8))
    large, same = (g.constant(n, np.array(v, np.float32)) for n, v in (("large", 1e4), ("same", 1e4 - 1)))
    first, ends = g.relu(g.conv("x", 4)), []
    for _ in range(2):  # in either branch a difference of large numbers
        x = g.relu(g.conv(g.relu(g.conv(first, 4)), 4))
        x = g.node("Sub", [g.node("Add", [x, large], (4, 8, 8)), same], (4, 8, 8))
        ends.append(g.relu(g.conv(g.relu(g.conv(x, 4)), 4)))
    g.output(g.node("Concat", ends, (8, 8, 8), axis=1))
    report = export_model(g.build(), tmp_path / "net.tflite", dtype="int8")
    assert report.parity["snr_db"] > 20
    assert any("4 of 14 operators stay in float32" in note for note in report.notes)
    assert len(written) <= 5  # of 14 operators


def test_ranges_that_no_value_gives_are_refused(tmp_path: Path) -> None:
    """The interpreter ended the process at a file with such ranges."""
    g = GraphBuilder("nan", 0, (3,))
    g.output(g.gemm(g.unary("Sqrt", g.unary("Neg", g.unary("Exp", g.gemm("x", 4)))), 4))
    with pytest.raises(ExportError, match=r"no value of '.*' is finite: give samples that the network is meant for"):
        export_model(g.build(), tmp_path / "nan.tflite", dtype="int8")
    assert list(tmp_path.iterdir()) == []
