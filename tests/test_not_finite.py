"""NaN and infinity in weights: refused by name where they spoil a fold, left alone where they are masks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from onnxfold.cli import cli
from onnxfold.errors import NonFiniteError, VerificationError
from onnxfold.folding import open_model
from onnxfold.graph import tensors
from onnxfold.graph.files.load import load
from onnxfold.graph.finite import flaw
from onnxfold.graph.tensors import LazyTensor, to_proto
from onnxfold.passes.merge.fold_channels import FoldChannels
from testing import models
from testing.quick import quick_fold

NAN, INF = float("nan"), float("inf")


def _spoil(model: onnx.ModelProto, value: float, which: int = 0) -> str:
    """Put a value into a weight; return its name."""
    floats = [t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT]
    tensor = floats[which]
    values = numpy_helper.to_array(tensor).copy()
    values.reshape(-1)[values.size // 2] = value
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return str(tensor.name)


# -- one tensor ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("size", [1, 7, 50])
def test_every_float_type_is_tested_in_pieces(dtype: type, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "_PIECE", 8)
    values: NDArray[np.generic] = np.linspace(-3, 3, size).astype(dtype)
    largest = ml_dtypes.finfo(dtype).max
    values[0] = largest
    assert flaw(values) == flaw(LazyTensor(to_proto("w", values))) == ""
    for bad, word in ((NAN, "NaN"), (-INF, "infinite"), (INF, "infinite")):
        for place in {0, size - 1}:
            spoilt = values.copy()
            spoilt[place] = bad
            assert flaw(spoilt) == flaw(LazyTensor(to_proto("w", spoilt))) == word
    assert flaw(values[:0]) == ""


def test_external_data_are_read_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "in.onnx"
    model = models.mlp(0, widths=(64, 48))
    name = _spoil(model, NAN)
    onnx.save_model(model, str(path), save_as_external_data=True, location="in.onnx.data", size_threshold=64)
    weight = load(path).weights[name]
    assert isinstance(weight, LazyTensor)
    assert weight.is_external
    pieces = list(weight.pieces(100))
    assert {len(p) for p in pieces[:-1]} == {100}
    np.testing.assert_array_equal(np.concatenate(pieces), weight.load().reshape(-1))
    with pytest.raises(NonFiniteError, match=name):
        quick_fold(path)


# -- folds ---------------------------------------------------------------------------------------


def test_weights_that_two_groups_share_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(open_model, "flaw", lambda weight: read.append(weight.proto.name) or "")
    (scope,) = open_model.open_scopes(load(models.chain_conv(0)))
    open_model.require_finite_channels(scope, everywhere=True)
    assert len(read) == len(set(read)) > 0


@pytest.mark.parametrize("method", ["fold-ls", "fold-ar", "prune-l1"])
@pytest.mark.parametrize(("value", "word"), [(NAN, "NaN"), (INF, "infinite"), (-INF, "infinite")])
def test_weights_of_groups_are_refused_by_name(value: float, word: str, method: str) -> None:
    model = models.residual(0)
    name = _spoil(model, value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NonFiniteError, match=f"'{name}' is {word}") as caught:
            quick_fold(model, method=method)
    assert caught.value.tensor == name
    assert caught.value.exit_code == 1


def test_all_weights_nan_ends_in_one_line(tmp_path: Path) -> None:
    model = models.chain_conv(0)
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(np.full(tensor.dims, NAN, np.float32), tensor.name))
    path = tmp_path / "in.onnx"
    onnx.save(model, str(path))
    done = CliRunner().invoke(cli, ["fold", str(path), str(tmp_path / "out.onnx")])
    assert isinstance(done.exception, NonFiniteError)
    assert [p.name for p in tmp_path.iterdir()] == ["in.onnx"]


def _nan_in_a_constant(model: onnx.ModelProto) -> None:
    value = numpy_helper.from_array(np.array([NAN], np.float32), "v")
    model.graph.node.insert(0, helper.make_node("Constant", [], ["spoilt"], value=value))


def _nan_in_a_scalar_constant(model: onnx.ModelProto) -> None:
    model.graph.node.insert(0, helper.make_node("Constant", [], ["spoilt"], value_float=NAN))


def _nan_in_a_body(model: onnx.ModelProto) -> None:
    info = helper.make_tensor_value_info("out", TensorProto.FLOAT, [1])
    weight = numpy_helper.from_array(np.array([NAN], np.float32), "spoilt")
    body = helper.make_graph([helper.make_node("Identity", ["spoilt"], ["out"])], "b", [], [info], [weight])
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    model.graph.node.append(helper.make_node("If", ["yes"], ["z"], then_branch=body, else_branch=body))


def _nan_in_a_function(model: onnx.ModelProto) -> None:
    nodes = [helper.make_node("Constant", [], ["spoilt"], value_floats=[1.0, NAN])]
    nodes.append(helper.make_node("Identity", ["spoilt"], ["out"]))
    model.functions.append(helper.make_function("local", "f", [], ["out"], nodes, model.opset_import[:1]))


@pytest.mark.parametrize("spoil", [_nan_in_a_constant, _nan_in_a_scalar_constant, _nan_in_a_body, _nan_in_a_function])
def test_nan_is_found_wherever_weights_are_stored(spoil: Callable[[onnx.ModelProto], None]) -> None:
    model = models.mlp(0)
    spoil(model)
    with pytest.raises(NonFiniteError, match="'spoilt' is NaN"):
        quick_fold(model)


@pytest.mark.parametrize("mask", [-INF, float(np.finfo(np.float32).min)])
@pytest.mark.parametrize("stored", [True, False])
def test_masks_of_attention_may_be_infinite(mask: float, stored: bool) -> None:
    """Scores that are masked out before a Softmax, by a stored mask or by one that is computed from constants."""
    rng = np.random.default_rng(0)
    weights = {
        n: rng.standard_normal(s).astype(np.float32) for n, s in (("w0", (8, 16)), ("w1", (16, 12)), ("w2", (12, 4)))
    }
    if stored:
        weights["added"] = np.triu(np.full((6, 6), mask, np.float32), 1)
    else:
        causal = np.triu(np.ones((6, 6), bool), 1)
        weights |= {"causal": causal, "low": np.array(mask, np.float32), "zero": np.array(0, np.float32)}
    nodes = [
        *([] if stored else [helper.make_node("Where", ["causal", "low", "zero"], ["added"])]),
        helper.make_node("MatMul", ["x", "w0"], ["q"]),
        helper.make_node("Relu", ["q"], ["h"]),
        helper.make_node("Transpose", ["h"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["h", "t"], ["scores"]),
        helper.make_node("Add", ["scores", "added"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "h"], ["mixed"]),
        helper.make_node("MatMul", ["mixed", "w1"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w2"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [None, 6, d]) for n, d in (("x", 8), ("y", 4)))
    initializers = [numpy_helper.from_array(values, name) for name, values in weights.items()]
    graph = helper.make_graph(nodes, "masked", [x], [y], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        report = quick_fold(model, 0.3).report
    assert report.fidelity is not None
    assert np.isfinite(report.fidelity.outputs[0].relative_error)


def test_a_repair_that_overflows_is_an_error_without_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    run = FoldChannels.run

    def overflow(self: FoldChannels, view: onnxfold.graph.view.GraphView) -> object:
        done = run(self, view)
        name = next(n for n, w in view.weights.items() if not isinstance(w, LazyTensor) and w.dtype == np.float32)
        view.put_weights({name: np.full_like(view.weights[name], INF)})
        return done

    monkeypatch.setattr(FoldChannels, "run", overflow)
    with pytest.raises(VerificationError, match="became infinite in the fold"):
        quick_fold(models.chain_conv(0), 0.4, method="fold-naive", verify=False)
