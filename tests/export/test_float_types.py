"""Models in other floats than float32, which onnxruntime may not load: written in float32, and checked all the same."""

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfold.errors import ExportError
from onnxfold.export import export_model, parity
from testing.models import mlp

pytest.importorskip("ai_edge_litert")


def _typed(kind: int) -> onnx.ModelProto:
    model = mlp(0)
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.elem_type = kind
    for weight in model.graph.initializer:
        values = numpy_helper.to_array(weight)
        weight.CopyFrom(helper.make_tensor(weight.name, kind, values.shape, values.ravel()))
    return model


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE])
def test_other_floats_are_checked(kind: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = export_model(_typed(kind), tmp_path / "o.tflite")
    assert report.parity["samples"] > 0
    assert report.parity["max_rel_error"] < 1e-5
    run = parity.run_reference
    monkeypatch.setattr(parity, "run_reference", lambda *a: [{n: v + 1 for n, v in o.items()} for o in run(*a)])
    with pytest.raises(ExportError, match="differ from the ONNX model's"):
        export_model(_typed(kind), tmp_path / "wrong.tflite")
    assert not (tmp_path / "wrong.tflite").exists()


def test_float8_is_refused(tmp_path: Path) -> None:
    model = mlp(0)
    name = model.graph.input[0].name
    for node in model.graph.node:
        node.input[:] = ["as_float" if i == name else i for i in node.input]
    model.graph.node.insert(0, helper.make_node("Cast", [name], ["as_float"], to=TensorProto.FLOAT))
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT8E4M3FN
    model.opset_import[0].version = max(model.opset_import[0].version, 19)
    with pytest.raises(ExportError, match="an element type that TFLite does not have"):
        export_model(model, tmp_path / "o.tflite")
    assert list(tmp_path.iterdir()) == []
