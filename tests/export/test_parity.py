"""The check must be able to fail, and leave nothing behind when it does."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxfold.errors import ExportError
from onnxfold.export import api, export_model, parity
from onnxfold.graph.tensors import Array
from testing.graph_builder import GraphBuilder
from tests.export.test_tflite import chain

pytest.importorskip("ai_edge_litert")


def test_one_wrong_output_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = parity.run_reference

    def wrong(*args: object) -> list[dict[str, Array]]:
        outputs = real(*args)  # type: ignore[arg-type]
        outputs[-1]["y"].reshape(-1)[-1] += 100 * parity.TOLERANCE * np.abs(outputs[-1]["y"]).max()
        return outputs

    monkeypatch.setattr(parity, "run_reference", wrong)
    with pytest.raises(ExportError, match="differ from the ONNX model's"):
        export_model(chain("conv", "relu"), tmp_path / "net.tflite")
    assert list(tmp_path.iterdir()) == []
    export_model(chain("conv", "relu"), tmp_path / "net.tflite", verify=False)
    assert [p.name for p in tmp_path.iterdir()] == ["net.tflite"]


def test_a_failed_export_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net.tflite").write_bytes(b"old")
    monkeypatch.setattr(api, "TOLERANCES", {"float32": -1.0})
    with pytest.raises(ExportError):
        export_model(chain("conv"), tmp_path / "net.tflite")
    assert (tmp_path / "net.tflite").read_bytes() == b"old"


def test_without_an_interpreter_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "PACKAGES", ())
    with pytest.raises(ExportError, match="--no-verify"):
        export_model(chain("conv"), tmp_path / "net.tflite")
    assert list(tmp_path.iterdir()) == []
    assert export_model(chain("conv"), tmp_path / "net.tflite", verify=False).parity == {}


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_differs(value: float) -> None:
    good, bad = np.ones(3), np.array([1.0, value, 1.0])
    for a, b in ((good, bad), (bad, good), (np.array([1.0, -np.inf, 1.0]), bad)):
        with pytest.raises(ExportError, match="not finite at the same places"):
            parity.difference("y", a, b)
    assert parity.difference("y", bad, bad) == 0.0


def test_judgement_of_nan() -> None:
    with pytest.raises(ExportError):
        api._judge(parity.Parity("none", 1, float("nan"), float("nan")), "float32")


def test_samples_are_as_many_as_promised() -> None:
    batches = parity.reference_inputs(api.open_model(chain("conv")))
    assert sum(len(b["x"]) for b in batches) == parity.SAMPLES


def detector(bias: float) -> onnx.ModelProto:
    """A network whose only output is a probability; with a low bias it is close to 0 on usual inputs."""
    g = GraphBuilder("net", 0, (6,))
    weight, low = g.constant("w", g.normal(4, 6)), g.constant("b", np.full(4, bias, np.float32))
    y = g.sigmoid(g.node("Gemm", ["x", weight, low], (4,), transB=1))
    g.output(g.node("Reshape", [y, g.constant("s", np.array([-1, 2, 2]))], (2, 2)))
    return g.build()


def test_a_probability_near_zero_is_measured_against_its_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = parity.run_reference

    def rounded(*args: object) -> list[dict[str, Array]]:
        return [{n: v + np.float32(1.2e-7) for n, v in out.items()} for out in real(*args)]  # type: ignore[arg-type]

    monkeypatch.setattr(parity, "run_reference", rounded)
    done = export_model(detector(-10.0), tmp_path / "net.tflite")
    assert done.parity["max_rel_error"] < 1e-5


@pytest.mark.parametrize("bias", [-10.0, -1000.0])
def test_a_wrong_probability_is_found(bias: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = parity.run_reference

    def wrong(*args: object) -> list[dict[str, Array]]:
        """Return the probabilities of a Sigmoid of half the slope."""
        outputs = real(*args)  # type: ignore[arg-type]
        for out in outputs:
            out["y"] = np.sqrt(out["y"]) if bias > -100 else out["y"] + np.float32(4e-5)
        return outputs

    monkeypatch.setattr(parity, "run_reference", wrong)
    with pytest.raises(ExportError, match=r"'y' by .* of (the range 0 to 1|0\.01) "):
        export_model(detector(bias), tmp_path / "net.tflite")


def test_outputs_that_are_probabilities() -> None:
    assert parity.probabilities(api.open_model(detector(0.0))) == {"y"}
    assert parity.probabilities(api.open_model(chain("conv", "relu"))) == frozenset()


def test_what_is_nowhere_finite_is_not_called_checked(tmp_path: Path) -> None:
    g = GraphBuilder("nan", 0, (3,))
    g.output(g.unary("Sqrt", g.unary("Neg", g.unary("Exp", g.gemm("x", 4)))))
    report = export_model(g.build(), tmp_path / "nan.tflite")
    assert "no output is finite on the synthetic inputs: nothing was compared" in report.notes
    assert not export_model(chain("conv"), tmp_path / "chain.tflite").notes


def _top() -> onnx.ModelProto:
    x, y = helper.make_tensor_value_info("x", 1, ["n", 40]), helper.make_tensor_value_info("y", 7, ["n", 30])
    order = helper.make_node("TopK", ["x", "k"], ["values", "y"])
    graph = helper.make_graph([order], "net", [x], [y], [numpy_helper.from_array(np.array([30]), "k")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(("moved", "is_refused"), [(1, False), (10, True)])
def test_rounding_moves_few_positions(
    moved: int, is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = parity.run_reference

    def swapped(*args: object) -> list[dict[str, Array]]:
        outputs = real(*args)  # type: ignore[arg-type]
        for out in outputs:
            out["y"][:, :moved] += 1
        return outputs

    monkeypatch.setattr(parity, "run_reference", swapped)
    if not is_refused:
        assert export_model(_top(), tmp_path / "net.tflite").parity["output"] == "y"
        return
    with pytest.raises(ExportError, match=r"'y' by 0\.33 of its numbers"):
        export_model(_top(), tmp_path / "net.tflite")


def test_single_values_may_lie_farther_off_where_all_others_agree() -> None:
    far = parity.Parity("none", 1, 1.0, 10 * parity.TOLERANCE, "y", "the largest entry", snr_db=79.0)
    with pytest.raises(ExportError, match="differ from the ONNX model's"):
        api._judge(far, "float32")
    api._judge(replace(far, snr_db=90.0), "float32")
    with pytest.raises(ExportError, match="differ from the ONNX model's"):
        api._judge(replace(far, snr_db=90.0, max_rel_error=0.01), "float32")


@pytest.mark.parametrize(("side", "means"), [(8, 2), (300, 4)])
def test_a_mean_of_many_values_is_taken_axis_by_axis(side: int, means: int, tmp_path: Path) -> None:
    """Kernels add values up in float32: three digits were left of a mean over 800 x 800 positions."""
    g = GraphBuilder("net", 0, (2, side, side))
    scale, bias = g.constant("scale", np.ones(2, np.float32)), g.constant("bias", np.zeros(2, np.float32))
    g.output(g.node("InstanceNormalization", ["x", scale, bias], (2, side, side)))
    assert export_model(g.build(), tmp_path / "net.tflite").operators["MEAN"] == means


def test_positions_are_divided_in_32_bits(tmp_path: Path) -> None:
    """An end-to-end detector divides the places of its best scores by the number of classes."""
    x, y = helper.make_tensor_value_info("x", 1, [2, 40]), helper.make_tensor_value_info("y", 7, [2, 9])
    order = helper.make_node("TopK", ["x", "k"], ["values", "places"])
    share = helper.make_node("Div", ["places", "classes"], ["y"])
    numbers = [numpy_helper.from_array(np.array(v), n) for n, v in (("k", [9]), ("classes", 4))]
    graph = helper.make_graph([order, share], "net", [x], [y], numbers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert export_model(model, tmp_path / "net.tflite").parity["max_abs_error"] == 0.0
