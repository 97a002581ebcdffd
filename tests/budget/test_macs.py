"""Multiply-accumulates per sample."""

import numpy as np
import onnx
import pytest

from onnxfold.budget.costs.memory import RamCost
from onnxfold.budget.costs.running import MacsCost, count_macs, count_token_macs
from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.files.load import load
from onnxfold.inspection import measure
from testing.graph_builder import GraphBuilder
from testing.models import ALL_MODELS, chain_conv
from tests.budget.folded import folds, graphs_of


def attention(seed: int, sequence: int = 4) -> onnx.ModelProto:
    """softmax(q k^T) v; the width of v folds, that of q and k (8) stays."""
    g = GraphBuilder("attention", seed, (sequence, 7))
    q, k, v = g.matmul_add("x", 8), g.matmul_add("x", 8), g.matmul_add("x", 10)
    k = g.node("Transpose", [k], [8, sequence], perm=[0, 2, 1])
    weights = g.node("Softmax", [g.node("MatMul", [q, k], [sequence, sequence])], [sequence, sequence], axis=-1)
    g.output(g.matmul_add(g.node("MatMul", [weights, v], [sequence, 10]), 5))
    return g.build()


def fixed_batch(proto: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    for info in (*proto.graph.input, *proto.graph.output):
        info.type.tensor_type.shape.dim[0].dim_value = batch
    return proto


def test_products_of_two_activations() -> None:
    proto = attention(0)
    graphs = graphs_of(proto)
    cost = MacsCost(graphs)
    assert [g.size for _, groups in graphs for g in groups] == [10]
    assert cost([10]) == 4 * 7 * (8 + 8 + 10) + 4 * 4 * 8 + 4 * 4 * 10 + 4 * 10 * 5
    assert cost([2]) == 4 * 7 * (8 + 8 + 2) + 4 * 4 * 8 + 4 * 4 * 2 + 4 * 2 * 5
    for found, folded in folds(proto):
        assert count_macs(folded) == cost(found)
        assert count_macs(folded) is not None


@pytest.mark.parametrize(("operator", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrences_multiply_input_and_states_at_every_step(operator: str, gates: int) -> None:
    rows = 4 * gates
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    steps (float[1, 5, 3] x) => (float[1, 5, 2, 4] y) <float[2, {rows}, 3] w, float[2, {rows}, 4] r> {{
      y = {operator}<direction = "bidirectional", hidden_size = 4, layout = 1>(x, w, r)
    }}"""
    model = onnx.parser.parse_model(text)
    for name, width in (("w", 3), ("r", 4)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((2, rows, width), np.float32), name))
    view = load(model)
    assert count_macs(view) == 5 * 2 * rows * (3 + 4)
    assert count_token_macs(view) == 2 * rows * (3 + 4)


@pytest.mark.parametrize("name", ["chain_conv", "residual", "autoencoder", "matmul_bias_sequence"])
def test_per_sample_whatever_the_batch(name: str) -> None:
    build = ALL_MODELS[name]
    assert count_macs(load(fixed_batch(build(0), 3))) == count_macs(load(fixed_batch(build(0), 1)))
    assert count_macs(load(fixed_batch(build(0), 3))) == count_macs(load(build(0)))


def test_heads_in_the_leading_dimension_are_no_batch() -> None:
    """(2 heads, 6, 4) x (2 heads, 4, 6): with a batch of one or an open one, both heads count."""
    g = GraphBuilder("heads", 0, (12, 4))
    shape = g.constant("shape", np.array([-1, 6, 4], np.int64))
    heads = g.node("Reshape", ["x", shape], [6, 4])
    turned = g.node("Transpose", [heads], [4, 6], perm=[0, 2, 1])
    product = g.node("MatMul", [heads, turned], [6, 6])
    back = g.constant("back", np.array([-1, 2, 6, 6], np.int64))
    g.output(g.node("Reshape", [product, back], [2, 6, 6]))
    assert count_macs(load(g.build())) == 2 * 6 * 6 * 4


def test_unreachable_layers_do_not_count() -> None:
    g = GraphBuilder("dead", 0, (7,))
    g.gemm("x", 100)
    g.output(g.gemm("x", 5))
    assert count_macs(load(g.build())) == 7 * 5


def test_unknown_sizes_name_the_tensor_and_the_way_out() -> None:
    proto = chain_conv(0)
    for axis in (2, 3):
        proto.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = "size"
    assert count_macs(load(proto)) is None
    for cost in (MacsCost, RamCost):
        with pytest.raises(
            UnsupportedModelError, match=r"tensor '\w+' \(\S+ \d, \?, \?\).*--input-shapes x:1,3,128,128$"
        ) as e:
            cost(graphs_of(proto))
        assert "\n" not in str(e.value)
    assert count_macs(load(proto, {"x": (1, 3, 8, 8)})) == measure(chain_conv(0)).macs
