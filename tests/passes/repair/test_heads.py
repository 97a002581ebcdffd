"""Consumers of heads are refitted by what all positions of the heads that are left say."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxfold.channels import find_groups
from onnxfold.channels.declarations import Axis
from onnxfold.cluster.partition import mean_partition, select_partition
from onnxfold.cluster.plan import FoldPlan
from onnxfold.graph.files.load import load
from onnxfold.passes.merge.fold_channels import axis_map
from testing.compare import relative_difference
from testing.models import run
from testing.quick import quick_fold
from testing.rule_models.table import RULE_MODELS


def _mirrored_heads() -> onnx.ModelProto:
    """Two heads that attend alike; the values of the second are those of the first in the opposite order."""
    random = np.random.default_rng(0)
    head = {name: random.normal(0, 0.5, (6, 4)).astype(np.float32) for name in "qkv"}
    weights = {name: np.concatenate([w, w[:, ::-1] if name == "v" else w], 1) for name, w in head.items()}
    weights["o"] = random.normal(0, 0.5, (8, 5)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", f"{name}_w"], [name], name) for name in "qkv"]
    nodes.append(
        helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["mixed"], domain="com.microsoft", num_heads=2)
    )
    nodes.append(helper.make_node("MatMul", ["mixed", "o_w"], ["y"], "o"))
    graph = helper.make_graph(
        nodes,
        "mirrored",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 10, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 10, 5])],
        [numpy_helper.from_array(w, f"{name}_w") for name, w in weights.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def test_other_positions_of_a_head_that_stays_stand_in() -> None:
    """Position for position the second head has nothing to do with the first."""
    model = _mirrored_heads()
    feeds = {"x": np.random.default_rng(1).normal(size=(4, 10, 6)).astype(np.float32)}
    expected = run(model, feeds)
    folded = quick_fold(model, channel_ratio=0.5, method="fold-ls", inputs="noise", samples=64)
    assert [g.folded_width for g in folded.report.groups] == [1]
    assert relative_difference(expected, run(folded.model, feeds)) < 0.05
    plain = quick_fold(model, channel_ratio=0.5, method="fold-ls", repair="none", inputs="noise", samples=64)
    assert relative_difference(expected, run(plain.model, feeds)) > 0.2


def test_an_axis_with_heads_is_mapped_by_position() -> None:
    """Queries and keys on one axis: six query heads in two groups, and two heads of keys and values that stay."""
    view = load(RULE_MODELS["GroupQueryAttention-packed-cached"]())
    (group,) = (g for g in find_groups(view).groups if g.apart)
    plan = FoldPlan((group,), (select_partition([0, 2, 3, 5], 6),))
    (node,) = (n for n in view.nodes if n.op_type == "GroupQueryAttention")
    mapped = axis_map(plan, Axis(node.input[0], 2), 80)
    assert mapped is not None
    assert mapped.positions.shape == (80, 1)
    values = np.arange(80.0)
    kept = [p for p in range(80) if p // 8 not in (1, 4)]
    np.testing.assert_array_equal(mapped.encode_samples(values[None])[0], kept)
    np.testing.assert_array_equal(np.sort(mapped.positions[mapped.representatives].reshape(-1)), kept)


def test_equal_heads_are_added_up_position_by_position() -> None:
    view = load(RULE_MODELS["MultiHeadAttention"]())
    (group,) = (g for g in find_groups(view).groups if g.apart)
    plan = FoldPlan((group,), (mean_partition([0, 1, 2, 3, 1, 4]),))
    mapped = axis_map(plan, Axis("mixed", 2), 48)
    assert mapped is not None
    weight = np.random.default_rng(0).normal(size=48)
    folded = np.empty(40)
    folded[mapped.folded_positions.reshape(-1)] = (weight[mapped.positions.reshape(-1)] @ mapped.decode).reshape(-1)
    by_head = weight.reshape(6, 8)
    np.testing.assert_allclose(folded.reshape(5, 8)[1], by_head[1] + by_head[4])
    np.testing.assert_allclose(folded.reshape(5, 8)[4], by_head[5])
