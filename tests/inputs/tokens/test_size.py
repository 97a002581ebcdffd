"""Multiply-accumulates per token, of models with open lengths, and the number of tokens that follows from them."""

from pathlib import Path

import numpy as np
import onnx

import onnxfold.machine.memory
from onnxfold.budget.costs.running import count_token_macs
from onnxfold.graph.files.load import load
from onnxfold.inputs.input_plan import InputRequest
from onnxfold.inputs.tokens.interface import token_interface
from onnxfold.inputs.tokens.token_plan import TokenPlan, affordable_text, planned_tokens
from onnxfold.inspection import inspect_model, measure
from testing.genai_models import LONGEST, genai_decoder
from testing.language_models import WORDS, decoder
from testing.models import chain_conv, run
from testing.quick import quick_fold
from tests.folding.test_tables import sentences


def test_language_models_with_open_lengths_count_per_token() -> None:
    """Matrices that tokens are multiplied by; tables that they are looked up in cost nothing."""
    model = decoder()
    found = inspect_model(model)
    assert found.size is not None
    assert (found.size.macs_per, found.size.macs_title) == ("token", "MACs per token")
    skipped = ("embedding", "positions")
    matrices = [t for t in model.graph.initializer if len(t.dims) > 1 and t.name not in skipped]
    assert found.size.macs == sum(int(np.prod(t.dims)) for t in matrices)
    report = quick_fold(model, 0.1, method="fold-naive", allocation="uniform", verify=False).report
    assert report.before.macs == found.size.macs
    assert report.after.macs is not None
    assert report.after.macs < found.size.macs
    assert report.before.macs - report.after.macs <= report.before.parameters - report.after.parameters
    assert found.to_dict()["macs_per"] == "token"
    assert (measure(model).macs, measure(model).macs_per) == (found.size.macs, "token")


def test_other_models_count_per_sample() -> None:
    assert inspect_model(chain_conv(0)).to_dict()["macs_per"] == "sample"


def test_other_open_lengths_count_at_usual_sizes() -> None:
    """Detectors are exported with a free height and width: a fold runs them at usual ones, and trades their work."""
    sized, model = chain_conv(0), chain_conv(0)
    for changed, size in ((sized, 224), (model, None)):
        del changed.graph.value_info[:]
        for dim in changed.graph.input[0].type.tensor_type.shape.dim[2:]:
            dim.Clear()
            if size:
                dim.dim_value = size
        for dim in changed.graph.output[0].type.tensor_type.shape.dim:
            dim.Clear()
    measured = measure(model)
    assert (measured.macs, measured.macs_title) == (measure(sized).macs, "MACs per sample of size 224 x 224")
    result = quick_fold(model, 0.3)
    assert result.report.before == inspect_model(model).size == measured
    assert result.report.after.macs == quick_fold(sized, 0.3).report.after.macs
    notes = " ".join(result.report.notes)
    assert "run at x:1,3,224,224, because its height and width are free" in notes
    assert "weights alone" not in notes
    assert run(result.model, {"x": np.zeros((2, 3, 40, 72), np.float32)})[0].shape[0] == 2


def test_other_lengths_count_as_they_are_run() -> None:
    x, y = (onnx.helper.make_tensor_value_info(n, 1, ["n", "frames", c]) for n, c in (("x", 8), ("y", 5)))
    weight = onnx.numpy_helper.from_array(np.ones((8, 5), np.float32), "w")
    graph = onnx.helper.make_graph([onnx.helper.make_node("MatMul", ["x", "w"], ["y"])], "frames", [x], [y], [weight])
    size = measure(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9))
    assert (size.macs, size.macs_title) == (64 * 8 * 5, "MACs per sample of size 64")


def test_the_number_of_tokens_follows_from_cost_and_memory() -> None:
    view, interface = load(decoder()), token_interface(load(decoder()))
    assert interface is not None
    assert count_token_macs(view) == 4 * 32 * 32 + 2 * 32 * 48 + 32 * WORDS
    assert planned_tokens(view, interface, InputRequest()) == TokenPlan(96, 128)
    count, why = affordable_text(view, TokenPlan(96, 128), InputRequest(seconds=1e-6))
    assert count == 0
    assert "--input-seconds" in why
    with onnxfold.machine.memory.memory_limit("8M"):
        few = planned_tokens(view, interface, InputRequest(samples=1000))
    assert few.count < 1000
    assert "memory limit" in few.notes[0]


def test_tables_of_cosines_are_no_matrices() -> None:
    model = genai_decoder("packed")
    tables = [t for t in model.graph.initializer if len(t.dims) > 1 and t.dims[0] == LONGEST]
    assert tables
    matrices = [t for t in model.graph.initializer if len(t.dims) > 1 and t not in tables and "embed" not in t.name]
    assert count_token_macs(load(model)) == sum(int(np.prod(t.dims)) for t in matrices)


def test_a_file_has_one_size(tmp_path: Path) -> None:
    """No product that a form of the fold adds counts before it, and bytes are those on the disk."""
    path, folded = tmp_path / "model.onnx", tmp_path / "folded.onnx"
    onnx.save(sentences(), path)
    result = quick_fold(path, 0.2, verify=False)
    result.save(folded)
    for file, size in ((path, result.report.before), (folded, result.report.after)):
        assert size == measure(file) == inspect_model(file).size
        assert size.size_bytes == file.stat().st_size
