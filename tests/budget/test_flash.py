"""Bytes of constants and graph structure."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfold.budget.costs.memory import MODEL_BYTES, OPERATOR_BYTES, TENSOR_BYTES, FlashCost, count_flash
from onnxfold.budget.costs.weights import count_parameters
from onnxfold.graph.files.load import load
from testing.models import chain_conv, mlp
from testing.quick import quick_fold
from tests.budget.folded import folds, graphs_of, model
from tests.export_forms import FORMS


def _weight_bytes(proto: onnx.ModelProto) -> int:
    return sum(numpy_helper.to_array(t).nbytes for t in proto.graph.initializer)


def test_weights_and_an_allowance_per_operator_and_tensor() -> None:
    proto = mlp(0, widths=(12, 10))
    # Three Gemm with weight and bias, two Relu; x and the five results.
    structure = MODEL_BYTES + 5 * OPERATOR_BYTES + (6 + 6) * TENSOR_BYTES
    assert count_flash(load(proto)) == _weight_bytes(proto) + structure
    cost = FlashCost(graphs_of(proto))
    assert cost([12, 10]) - cost([11, 10]) == 4 * (7 + 1 + 10)
    assert cost([12, 10]) - cost([12, 9]) == 4 * (12 + 1 + 5)


@pytest.mark.parametrize("elem_type", [np.float16, np.float64])
def test_element_types(elem_type: type) -> None:
    proto = mlp(0, widths=(12, 10))
    difference = count_flash(load(proto)) - _weight_bytes(proto)
    for tensor in proto.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(elem_type), tensor.name))
    assert count_flash(load(proto)) - _weight_bytes(proto) == difference


@pytest.mark.parametrize("name", ["Gather", "Gather-order", "Shuffle"])
def test_positions_that_a_gather_picks_fold_as_well(name: str) -> None:
    """All that changes is what is stored."""
    proto = model(name)
    cost = FlashCost(graphs_of(proto))
    found = [
        (cost(widths) - sum(folded.weight(n).nbytes for n in folded.weights), folded) for widths, folded in folds(proto)
    ]
    indices = [
        sum(folded.weight(n).size for n in folded.weights if folded.weight(n).dtype == np.int64) for _, folded in found
    ]
    assert len({structure for structure, _ in found}) == 1
    assert indices[0] > indices[-1]


def test_a_shared_weight_counts_once_and_an_unused_one_not_at_all() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("MatMul", ["h", "w"], ["y"])]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 4]) for n in "xy"]
    weights = [numpy_helper.from_array(np.ones((4, 4), np.float32), n) for n in ("w", "unused")]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert count_flash(load(proto)) == 64 + MODEL_BYTES + 2 * OPERATOR_BYTES + 4 * TENSOR_BYTES


@pytest.mark.parametrize("form", ["constant_nodes", "listed_weights"])
def test_the_form_of_the_export_does_not_matter(form: str) -> None:
    assert count_flash(load(FORMS[form](chain_conv(0)))) == count_flash(load(chain_conv(0)))


def test_quantised_weights_count_once_with_their_own_bytes() -> None:
    proto = quick_fold(mlp(0, widths=(64, 48)), 0.0, dtype="int8").model
    tensors = 1 + len(proto.graph.node) + len(proto.graph.initializer)
    structure = MODEL_BYTES + len(proto.graph.node) * OPERATOR_BYTES + tensors * TENSOR_BYTES
    assert count_flash(load(proto)) == _weight_bytes(proto) + structure
    assert _weight_bytes(proto) < 2 * count_parameters(load(proto))
