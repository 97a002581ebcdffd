"""Counting weights: of a model, and of a model that does not exist yet."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfold.budget.costs.weights import WeightCost, count_parameters
from onnxfold.channels import find_groups
from onnxfold.cluster.partition import mean_partition
from onnxfold.cluster.plan import FoldPlan
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.inspection import measure
from onnxfold.passes.merge.fold_channels import FoldChannels
from onnxfold.passes.normalize.pipelines import NORMALIZE
from testing.models import ALL_MODELS
from testing.quick import quick_fold
from testing.rule_models.table import RULE_MODELS
from tests.export_forms import FORMS

MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    **{name: (lambda build=build: build(0)) for name, build in ALL_MODELS.items()},
    **{name: RULE_MODELS[name] for name in ("BitwiseAnd", "Where", "Concat", "Split-17", "LSTM-bidirectional", "Tile")},
}


@pytest.mark.parametrize("name", MODELS)
def test_cost_is_the_count_after_folding(name: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(3):
        view = load(MODELS[name]())
        NORMALIZE(view)
        analysis = find_groups(view)
        cost = WeightCost([(view, analysis.groups)])
        assert cost([g.size for g in analysis.groups]) == count_parameters(view)
        partitions = []
        for group in analysis.groups:
            per_block = int(rng.integers(1, group.size // group.block_count + 1))
            blocks = np.zeros(group.size, np.int64) if group.blocks is None else group.blocks
            inside = [np.cumsum(blocks == b) - 1 for b in range(group.block_count)]
            labels = sum((blocks == b) * (inside[b] % per_block + b * per_block) for b in range(group.block_count))
            partitions.append(mean_partition(labels))
        expected = cost([p.clusters for p in partitions])
        plan = FoldPlan(tuple(analysis.groups), tuple(partitions))
        FoldChannels(plan, tuple(analysis.counts), tuple(analysis.selects))(view)
        assert count_parameters(view) == expected
        assert count_parameters(load(to_model(view))) == expected


def test_cost_over_several_graphs() -> None:
    """Bodies of control flow are graphs of their own; widths are given for all of them in order."""
    views = [load(ALL_MODELS[name](0)) for name in ("mlp", "chain_conv")]
    groups = [find_groups(view).groups for view in views]
    cost = WeightCost(list(zip(views, groups, strict=True)))
    widths = [[g.size - 1 for g in found] for found in groups]
    parts = [WeightCost([(v, g)])(w) for v, g, w in zip(views, groups, widths, strict=True)]
    assert cost(widths[0] + widths[1]) == sum(parts)


def _matmul_model(extra: list[onnx.NodeProto] | None = None, **weights: np.ndarray) -> onnx.ModelProto:
    nodes = [*(extra or []), helper.make_node("MatMul", ["x", "w"], ["y"])]
    values = {"w": np.ones((3, 4), np.float32), **weights}
    initializers = [numpy_helper.from_array(v, k) for k, v in values.items() if v is not None]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", d]) for n, d in (("x", 3), ("y", 4))]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _shared() -> onnx.ModelProto:
    model = _matmul_model()
    model.graph.node[0].output[0] = "h"
    model.graph.node.append(helper.make_node("MatMul", ["h", "again"], ["y"]))
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 4), np.float32), "again"))
    model.graph.node.append(helper.make_node("MatMul", ["h", "again"], ["z"]))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["N", 4]))
    return model


def _constant_node() -> onnx.ModelProto:
    constant = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(np.ones((3, 4), np.float32)))
    return _matmul_model([constant], w=None)


def _subgraph() -> onnx.ModelProto:
    """Two weights of 4 in the branches, one of 4 that both read from outside."""
    model = _matmul_model(outer=np.ones(4, np.float32))
    model.graph.node[0].output[0] = "h"
    branches = []
    for name in ("then", "else"):
        nodes = [
            helper.make_node("Add", ["h", f"{name}_w"], [f"{name}_sum"]),
            helper.make_node("Mul", [f"{name}_sum", "outer"], [f"{name}_out"]),
        ]
        weight = numpy_helper.from_array(np.ones(4, np.float32), f"{name}_w")
        info = helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, ["N", 4])
        branches.append(helper.make_graph(nodes, name, [], [info], [weight]))
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    model.graph.node.append(helper.make_node("If", ["yes"], ["y"], then_branch=branches[0], else_branch=branches[1]))
    return model


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        (_matmul_model(), 12),
        (_matmul_model(unreachable=np.ones((9, 9), np.float32)), 12),
        (_matmul_model([helper.make_node("MatMul", ["x", "dead"], ["d"])], dead=np.ones((3, 9), np.float32)), 12),
        (_matmul_model([helper.make_node("Gather", ["x", "i"], ["d"])], i=np.ones(5, np.int64)), 12),
        (_shared(), 12 + 16),
        (_constant_node(), 12),
        (_subgraph(), 12 + 4 + 4 + 4),
        (_matmul_model(w=np.ones((3, 4), np.float16)), 12),
        (_matmul_model(w=np.ones((3, 4), np.float64)), 12),
        (_matmul_model(w=np.ones((3, 4), np.int32)), 0),
    ],
    ids=[
        "plain", "unreachable weight", "dead node", "integers", "shared", "Constant node", "subgraphs", "float16",
        "float64", "integer weight",
    ],
)  # fmt: skip
def test_what_counts(model: onnx.ModelProto, parameters: int) -> None:
    assert count_parameters(load(model)) == parameters


@pytest.mark.parametrize("form", ["constant_nodes", "identity_routed", "listed_weights", "unused_parts"])
def test_the_form_of_the_export_does_not_matter(form: str) -> None:
    model = ALL_MODELS["residual"](0)
    expected = sum(int(np.prod(t.dims)) for t in model.graph.initializer)
    assert count_parameters(load(model)) == expected
    assert count_parameters(load(FORMS[form](model))) == expected


def test_macs_and_bytes() -> None:
    size = measure(ALL_MODELS["chain_conv_plain"](0))
    assert size.macs == 6 * 3 * 9 * 64 + 8 * 6 * 9 * 64 + 8 * 5
    assert size.parameters == 6 * 3 * 9 + 6 + 8 * 6 * 9 + 8 + 8 * 5 + 5
    assert size.size_bytes >= 4 * size.parameters
    transposed = measure(ALL_MODELS["autoencoder"](0))
    # Every element of the input meets the filters of its channel: 2x2, for 8 and for 3 outputs.
    assert transposed.macs == 6 * 3 * 9 * 16 + 10 * 6 * 9 * 4 + 10 * 4 * (8 * 4) + 8 * 16 * (3 * 4)
    grouped = measure(ALL_MODELS["depthwise_separable"](0))
    assert grouped.macs == 6 * 3 * 9 * 64 + 6 * 9 * 64 + 12 * 6 * 64 + 12 * 5


@pytest.mark.parametrize("name", ["value_float", "value_int"])
def test_a_constant_that_a_function_takes_as_a_parameter_counts_as_no_weight(name: str) -> None:
    """As the functions of PyTorch's ONNX library have them (xfeat)."""
    opsets, model = [helper.make_opsetid("", 18)], ALL_MODELS["mlp"](0)
    weights = count_parameters(load(model))
    constant = helper.make_node("Constant", [], ["c"])
    constant.attribute.add(name=name, ref_attr_name="step", type=helper.make_attribute(name, 1).type)
    body = [constant, helper.make_node("CastLike", ["c", "x"], ["s"]), helper.make_node("Mul", ["x", "s"], ["y"])]
    model.functions.append(helper.make_function("tests", "Scale", ["x"], ["y"], body, opsets, ["step"]))
    model.opset_import.append(helper.make_opsetid("tests", 1))
    last = model.graph.node[-1]
    result, last.output[0] = last.output[0], "unscaled"
    value = 1.5 if name == "value_float" else 1
    model.graph.node.append(helper.make_node("Scale", ["unscaled"], [result], domain="tests", step=value))
    assert count_parameters(load(model)) == weights
    assert quick_fold(model, 0.2).report.sparsity > 0.0
