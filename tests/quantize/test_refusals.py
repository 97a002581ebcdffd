"""What cannot be quantised is refused in one line; what stays in float32 is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

from onnxfold import api
from onnxfold.budget.allocate import require_reachable
from onnxfold.budget.width_space import WidthSpace
from onnxfold.errors import (
    BudgetError,
    ConfigError,
    ExportError,
    NothingToFoldError,
    UnsupportedModelError,
    VerificationError,
)
from onnxfold.export import to_tflite
from onnxfold.graph.files.load import load
from onnxfold.quantize import quantize
from testing import models
from testing.quick import QUICK, quick_fold
from tests.command_line import onnxfold as run_command
from tests.folding.bodies import choice


def _float16(model: onnx.ModelProto) -> onnx.ModelProto:
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.elem_type = TensorProto.FLOAT16
    return model


def _without_weights() -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 4]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", infos[:1], infos[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _int8(model: onnx.ModelProto, sparsity: float = 0.0, **options: object) -> api.FoldResult:
    return quick_fold(model, sparsity, dtype="int8", **options)


@pytest.fixture(scope="module")
def quantized() -> onnx.ModelProto:
    return _int8(models.chain_conv(0)).model


class _Noise(CalibrationDataReader):
    def __init__(self) -> None:
        values = np.random.default_rng(0).standard_normal((4, 4, 7)).astype(np.float32)
        self._batches = iter([{"x": batch} for batch in values])

    def get_next(self) -> dict[str, np.ndarray]:
        return next(self._batches, {})


def _integer_operators(folder: Path, **options: Any) -> onnx.ModelProto:
    """A model of QLinear operators, which read and give integers."""
    onnx.save(models.mlp(0), str(folder / "in.onnx"))
    quantize_static(folder / "in.onnx", folder / "q.onnx", _Noise(), QuantFormat.QOperator, **options)
    return onnx.load(folder / "q.onnx")


def test_a_quantised_model_is_not_quantised_again(quantized: onnx.ModelProto) -> None:
    with pytest.raises(UnsupportedModelError, match="quantised already, see DequantizeLinear 'conv_0_w"):
        _int8(quantized)


def test_a_model_of_integer_operators_is_not_folded(tmp_path: Path) -> None:
    model = _integer_operators(tmp_path)
    with pytest.raises(NothingToFoldError, match=r"is quantised, see Q\w+ .*fold the float32 model"):
        quick_fold(model, 0.5)
    assert api.inspect_model(model).groups == []


def test_of_a_model_that_is_quantised_in_part_the_most_is_said_with_the_reason(tmp_path: Path) -> None:
    model = _integer_operators(tmp_path, nodes_to_exclude=["gemm_1", "gemm_2"])
    with pytest.raises(BudgetError, match=r"0\.\d+ is the most .* is quantised, see \w+ '.*: fold the float32 model"):
        quick_fold(model, 0.95)
    with pytest.raises(BudgetError, match=r"no width of the fold groups makes this model smaller; ask for less"):
        require_reachable(WidthSpace.of([], {}, (), 1, (), ()), lambda widths: 70, 60, 0.3)


def test_the_tflite_writer_says_what_to_export_instead(quantized: onnx.ModelProto, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"quantised.*export it, or the float32 model, with --dtype int8"):
        to_tflite(quantized, tmp_path / "o.tflite")
    assert list(tmp_path.iterdir()) == []


def test_so_are_models_of_integer_operators() -> None:
    model = models.chain_conv(0)
    model.graph.node[-1].op_type = "QLinearGemm"
    with pytest.raises(UnsupportedModelError, match="quantised already, see QLinearGemm 'gemm_0'"):
        quantize.require_quantizable(load(model))


def test_other_float_types_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="weight 'conv_0_w' is float16: convert the model to float32"):
        _int8(_float16(models.chain_conv(0)))


def test_models_without_weights_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="there is nothing to quantise"):
        _int8(_without_weights())


def test_weights_of_bodies_stay_float() -> None:
    with pytest.raises(UnsupportedModelError, match="no Conv, Gemm or MatMul of the main graph"):
        _int8(choice(weights_outside=True))


def test_more_than_2_gb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantize, "PROTOBUF_LIMIT", 1000)
    with pytest.raises(UnsupportedModelError, match=r"the model has 2\.6 KiB of float32 weights"):
        _int8(models.chain_conv(0, bn=False))


def test_what_the_quantiser_stumbles_over_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("two\nlines")

    monkeypatch.setattr("onnxruntime.quantization.QDQQuantizer", fail)
    with pytest.raises(UnsupportedModelError, match="onnxruntime's quantiser refuses the model: two lines"):
        _int8(models.chain_conv(0))


def test_a_model_that_cannot_be_run_is_not_quantised() -> None:
    model = models.chain_conv(0, bn=False)
    values = numpy_helper.to_array(model.graph.initializer[0]) * np.float32(1e38)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(values, model.graph.initializer[0].name))
    with pytest.raises(VerificationError, match=r"output 'y' is NaN on generated inputs: give samples"):
        _int8(model)


def test_operators_without_integer_kernels_are_named() -> None:
    notes = _int8(models.preact_residual(0)).report.notes
    assert any("weights stay in float32: those of BatchNormalization" in note for note in notes)


@pytest.mark.parametrize("version", [9, 12])
def test_old_operator_sets_are_converted(version: int) -> None:
    model = models.chain_conv(0)
    model.opset_import[0].version = version
    result = _int8(model)
    assert {o.domain: o.version for o in result.model.opset_import}[""] == 13
    assert f"the operator set was converted from {version} to 13, which int8 needs" in result.report.notes


def test_gemm_with_factors_stays_float() -> None:
    """Onnxruntime's integer kernel ignores them; the check runs that kernel, so it would find a wrong answer."""
    result = _int8(models.gemm_variants(0))
    assert result.report.quantization is not None
    assert result.report.quantization.float_weights > result.report.quantization.weights
    assert any("those of Gemm" in note for note in result.report.notes)


def test_a_model_without_groups_can_be_quantised() -> None:
    net = models.mlp(0, widths=())
    with pytest.raises(NothingToFoldError):
        quick_fold(net, 0.5)
    assert _int8(net).report.groups == []


def test_zero_sparsity_is_for_quantisation_only() -> None:
    with pytest.raises(ConfigError, match=r"sparsity=0.* is outside \(0, 1\)"):
        quick_fold(models.chain_conv(0), 0.0)
    kept = _int8(models.chain_conv(0), ratios={"conv_0": 0.5})
    assert [(g.width, g.folded_width) for g in kept.report.groups] == [(6, 3), (8, 8)]


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["--dtype", "float16"], 2, "error: dtype 'float16' is unknown; use one of keep, int8"),
        (["--dtype", "int8", "--sparsity", "1"], 2, "error: sparsity=1.0 is outside [0, 1)"),
        (["--dtype", "int8", "--max-params", "1"], 1, "error: "),
        (["--dtype", "int8", "--min-fidelity", "0.9", "--sparsity", "0"], 2, "error: min_fidelity decides how far"),
    ],
)
def test_bad_combinations_give_one_line_and_no_file(words: list[str], code: int, line: str, tmp_path: Path) -> None:
    onnx.save(models.chain_conv(0), tmp_path / "in.onnx")
    more = [word for name, value in QUICK.items() for word in (f"--{name}", str(value))]
    done = run_command("fold", tmp_path / "in.onnx", tmp_path / "out.onnx", *more, *words)
    assert done.returncode == code
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.onnx"]
