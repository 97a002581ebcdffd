"""LSTM, GRU and RNN in the TFLite writer: sequences of several steps against onnxruntime, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfold.errors import ExportError
from onnxfold.export.api import open_model
from onnxfold.export.fusion import PREPARE
from onnxfold.export.parity import from_layout, to_layouts
from onnxfold.export.tflite.convert import convert
from testing.models import run

pytest.importorskip("ai_edge_litert")

from onnxfold.export.parity import TFLiteInterpreter

STEPS, BATCH, INPUTS, WIDTH = 5, 2, 3, 4
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _net(
    op: str,
    direction: str = "forward",
    *,
    batch: int | str = BATCH,
    steps: int | str = STEPS,
    width: int = WIDTH,
    states: str = "",
    peepholes: bool = False,
    bias: bool = True,
    **attributes: Any,
) -> onnx.ModelProto:
    """One recurrent node; its initial states are zero, constant, or inputs of the model."""
    random = np.random.default_rng(3)
    lanes, gates = 1 + (direction == "bidirectional"), GATES[op]

    def weight(*shape: int) -> Any:
        return random.normal(0, 0.5, shape).astype(np.float32)

    constants = {"w": weight(lanes, gates * width, INPUTS), "r": weight(lanes, gates * width, width)}
    names = ["x", "w", "r", "b" if bias else "", "", "", ""]
    if bias:
        constants["b"] = weight(lanes, 2 * gates * width)
    kept = ["h", "c"] if op == "LSTM" else ["h"]
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [steps, batch, INPUTS])]
    for place, name in enumerate(kept):
        if states == "constant":
            constants[name] = weight(lanes, BATCH, width)
        elif states == "given":
            ends.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [lanes, batch, width]))
        names[5 + place] = name if states else ""
    if peepholes:
        constants["p"] = weight(lanes, 3 * width)
        names.append("p")
    while not names[-1]:
        names.pop()
    outputs = ["y", "y_h", "y_c"] if op == "LSTM" else ["y", "y_h"]
    nodes = []
    if isinstance(batch, str):  # TFLite leaves the first dimension free only
        ends[0] = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, steps, INPUTS])
        nodes = [helper.make_node("Transpose", ["x"], ["turned"], perm=[1, 0, 2])]
        names[0] = "turned"
    node = helper.make_node(op, names, outputs, op.lower(), hidden_size=width, direction=direction, **attributes)
    found = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    stored = [numpy_helper.from_array(v, n) for n, v in constants.items()]
    graph = helper.make_graph([*nodes, node], op, ends, found, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def _written(model: onnx.ModelProto) -> Any:
    view = open_model(model)
    PREPARE(view)
    return convert(view)


CASES = {
    "lstm": {"op": "LSTM"},
    "lstm, no bias": {"op": "LSTM", "bias": False},
    "lstm, backward": {"op": "LSTM", "direction": "reverse", "states": "constant"},
    "lstm, both ways": {"op": "LSTM", "direction": "bidirectional", "states": "given"},
    "lstm, peepholes": {"op": "LSTM", "peepholes": True, "states": "constant"},
    "gru": {"op": "GRU"},
    "gru, as torch": {"op": "GRU", "linear_before_reset": 1},
    "gru, as torch, no bias": {"op": "GRU", "linear_before_reset": 1, "bias": False, "states": "constant"},
    "gru, both ways": {"op": "GRU", "direction": "bidirectional", "states": "given", "linear_before_reset": 1},
    "gru, free batch": {"op": "GRU", "batch": "N"},
    "lstm, free batch": {"op": "LSTM", "batch": "N", "direction": "bidirectional"},
    "rnn": {"op": "RNN", "direction": "bidirectional"},
    "one step": {"op": "GRU", "steps": 1, "states": "given"},
}


@pytest.mark.parametrize("name", CASES)
def test_every_step_is_that_of_onnxruntime(name: str, tmp_path: Path) -> None:
    options = dict(CASES[name])
    model = _net(**options)  # type: ignore[arg-type]
    random = np.random.default_rng(0)
    shapes = {i.name: [d.dim_value or BATCH for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    feeds = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    written = _written(model)
    (tmp_path / "net.tflite").write_bytes(written.to_bytes("net"))
    got = TFLiteInterpreter(tmp_path / "net.tflite").run(to_layouts(feeds, written.ports))
    for (name, layout), expected in zip(written.ports.outputs.items(), run(model, feeds), strict=True):
        np.testing.assert_allclose(from_layout(got[name], layout), expected, rtol=1e-4, atol=1e-5)


def test_weights_are_stored_once_for_all_steps() -> None:
    sizes = [len(_written(_net("LSTM", steps=steps, width=40)).to_bytes("net")) for steps in (2, 20)]
    assert sizes[1] - sizes[0] < 2 * (4 * 40 * 40 * 4)  # R of 18 further steps


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"steps": 300}, "every step is written out: fix the length of the sequence, to 256 at most"),
        ({"activations": ["Relu", "Tanh", "Tanh"]}, "its activations are Relu, Tanh, Tanh"),
        ({"clip": 2.0}, "it clips"),
        ({"input_forget": 1}, "coupled"),
    ],
)
def test_what_is_not_written_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ExportError, match=f"LSTM 'lstm': .*{says}"):
        _written(_net("LSTM", **options))
