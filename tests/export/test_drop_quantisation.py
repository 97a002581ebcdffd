"""QDQ ONNX, which a fold in int8 writes, exported by the exporter's own quantiser."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxfold.errors import ExportError
from onnxfold.export import export_model
from onnxfold.export.firmware import write_project
from onnxfold.export.fusion.local_rewrites import TO_FLOATS
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.graph.run.session import Session
from testing.graph_builder import GraphBuilder
from testing.quick import quick_fold


@pytest.fixture(scope="module")
def quantised() -> onnx.ModelProto:
    g = GraphBuilder("net", 0, (3, 16, 16))
    x = g.relu(g.conv("x", 8))
    g.output(g.gemm(g.flatten(g.max_pool(x)), 5))
    model = quick_fold(g.build(), 0.2, dtype="int8", samples=4).model
    assert not any(node.op_type == "Relu" for node in model.graph.node)  # the quantiser dropped it
    return model


def test_floats_compute_what_integers_do(quantised: onnx.ModelProto) -> None:
    """The Relu that the quantiser dropped is back, once, and nothing is left that quantises."""
    view = load(quantised)
    assert TO_FLOATS(view).modified
    assert [node.op_type for node in view.nodes] == ["Conv", "Relu", "MaxPool", "Flatten", "Gemm", "Identity"]
    assert not TO_FLOATS(view).modified
    # Inside the ranges that integers hold.
    feeds = {"x": 0.2 * np.random.default_rng(0).standard_normal((8, 3, 16, 16)).astype(np.float32)}
    (wanted,), (found,) = Session(quantised).run(feeds), Session(to_model(view)).run(feeds)
    assert np.abs(found - wanted).max() < 0.05 * np.abs(wanted).max()


def test_it_exports_in_int8_and_fits_as_it_was_planned(quantised: onnx.ModelProto, tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_quantizer")
    done = export_model(quantised, tmp_path / "net.tflite", dtype="int8")
    assert done.operators == {"CONV_2D": 1, "MAX_POOL_2D": 1, "FULLY_CONNECTED": 1}
    project = write_project(quantised, tmp_path / "sketch", "arduino", dtype="int8")
    assert (project.input_bytes, project.output_bytes) == (3 * 16 * 16, 5)
    with pytest.raises(
        ExportError, match=r"the model is quantised, .* export it, or the float32 model, with --dtype int8"
    ):
        export_model(quantised, tmp_path / "float.tflite")
