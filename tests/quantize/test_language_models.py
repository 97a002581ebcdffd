"""Language models in int8: activations take the range of every run, and names that the quantiser gives are free."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfold.graph.files.load import load
from onnxfold.graph.nodes import is_quantized
from onnxfold.graph.run.session import Session
from onnxfold.inputs.token_inputs import TokenSource
from onnxfold.inputs.tokens.interface import TokenInput, token_feeds, token_interface
from onnxfold.quantize.quantize import quantize_int8
from testing.genai_models import genai_decoder
from testing.graph_builder import GraphBuilder
from testing.language_models import decoder, encoder, grouped_query_decoder
from testing.models import mlp, random_input
from testing.quick import quick_fold

MODELS = {
    "decoder": decoder(),
    "encoder": encoder(),
    "grouped_query": grouped_query_decoder(),
    "genai": genai_decoder("packed"),
}


@pytest.mark.parametrize("is_measured", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_language_model_in_int8_keeps_its_answers_behind_a_past(name: str, is_measured: bool) -> None:
    view = load(MODELS[name])
    interface = token_interface(view)
    source = TokenSource(view, interface)
    ids = np.random.default_rng(0).integers(0, interface.vocabulary, (8, 16))
    made = quantize_int8(view, source.batches(ids) if is_measured else None)
    assert any(map(is_quantized, made.view.nodes))
    assert made.float_weights < 0.1 * made.weights
    states = np.random.default_rng(1)

    def values(one: TokenInput, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        return (0.5 * states.standard_normal(shape)).astype(one.dtype)

    feeds = token_feeds(interface, ids[:1, :1], values, past=5 if "past" in str(view.input_names) else 0)
    whole, integer = (session.run(feeds)[0] for session in (Session(MODELS[name]), Session(made.view)))
    assert np.square(integer - whole).sum() < (0.2 if is_measured else 0.002) * np.square(whole).sum()


def test_a_fold_of_what_reads_text_measures_no_ranges() -> None:
    result = quick_fold(MODELS["encoder"], dtype="int8")
    kinds = {node.op_type for node in result.view.nodes}
    assert "MatMulInteger" in kinds
    assert "QuantizeLinear" not in kinds
    assert "DynamicQuantizeLinear" not in {n.op_type for n in quick_fold(mlp(0), 0.5, dtype="int8").view.nodes}


def test_a_tied_table_is_stored_once() -> None:
    """Where the matrix of the scores is transposed to be the table of words, too, and where a Gemm has the product."""
    g = GraphBuilder("tied", 0, (4, 8))
    table = g.constant("table", np.random.default_rng(0).standard_normal((8, 32)).astype(np.float32))
    hidden = g.relu(g.gemm(g.node("Flatten", ["x"], (32,)), 8))
    words = g.node("Gather", [g.node("Transpose", [table], (32, 8)), g.constant("ids", np.array([3, 5]))], (2, 8))
    scores = g.node("MatMul", [hidden, table], (32,))
    g.output(g.node("Add", [scores, g.node("ReduceSum", [words], (), keepdims=0)], (32,)))
    model = g.build()
    made = quantize_int8(load(model), None).view
    sizes = [made.weight_size(n) for n in made.weights if made.weight_size(n) >= 256]
    assert sorted(sizes) == [256, 256]  # the Gemm's and the table, each as integers
    assert all(made.weight_type(n) == TensorProto.INT8 for n in made.weights if made.weight_size(n) >= 256)
    feeds = random_input(model, 1, batch=4)
    whole, integer = (session.run(feeds)[0] for session in (Session(model), Session(made)))
    assert np.square(integer - whole).sum() < 0.002 * np.square(whole).sum()


@pytest.mark.parametrize("outputs", [("y", "chosen"), ("y", "table")])
def test_bodies_and_outputs_still_have_the_matrices_that_they_read(outputs: tuple[str, ...]) -> None:
    """As floats, which are dequantised."""
    table = numpy_helper.from_array(np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32), "table")
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("x", *outputs)]
    bodies = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("MatMul", ["y", "table"], ["inner"]), helper.make_node(kind, ["inner"], ["out"])],
            name, [], [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        )
        for name, kind in (("then", "Relu"), ("else", "Neg"))
    }  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["x", "table"], ["y"]),
        helper.make_node("ReduceMax", ["y"], ["largest"], keepdims=0),
        helper.make_node("Cast", ["largest"], ["is_positive"], to=TensorProto.BOOL),
        helper.make_node("If", ["is_positive"], ["chosen"], **bodies),
    ]
    graph = helper.make_graph(nodes, "bodies", infos[:1], infos[1:], [table])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    made = quantize_int8(load(model), None).view
    assert "MatMulInteger" in {node.op_type for node in made.nodes}
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)}
    for whole, integer in zip(Session(model).run(feeds), Session(made).run(feeds), strict=True):
        assert np.square(integer - whole).sum() < 0.002 * np.square(whole).sum()


def test_names_that_the_quantiser_gives_are_free() -> None:
    """A weight is called as the scale of an activation, and another as the integers of a weight."""
    model = mlp(0)
    view, feeds = load(model), random_input(model, 1, batch=16)
    weights = [name for name in view.weights if view.weights[name].shape]
    renamed = {weights[0]: f"{view.nodes[0].output[0]}_scale", weights[1]: f"{weights[0]}_quantized"}
    renamed[weights[1]] = f"{renamed[weights[0]]}_quantized"
    view.rename_inputs(renamed)
    view.rename_weights(lambda name: renamed.get(name, name))
    made = quantize_int8(view, [feeds])
    expected = quantize_int8(load(model), [feeds])
    for one, other in zip(Session(made.view).run(feeds), Session(expected.view).run(feeds), strict=True):
        np.testing.assert_array_equal(one, other)
