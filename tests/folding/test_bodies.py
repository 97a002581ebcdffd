"""Bodies of If are folded inside; what crosses their border stays."""

import time

import numpy as np
import onnx
import pytest

from onnxfold import api
from onnxfold.folding import open_model
from testing.models import run
from testing.quick import quick_fold
from tests.folding.bodies import choice, nested_choice


def _outputs(model: onnx.ModelProto) -> list[np.ndarray]:
    x = np.random.default_rng(2).standard_normal((5, 4)).astype(np.float32)
    return [run(model, {"flag": np.array(flag), "x": x})[0] for flag in (True, False)]


def test_both_branches_are_folded_without_loss() -> None:
    for weights_outside in (False, True):
        model = choice(weights_outside=weights_outside)
        before = model.SerializeToString()
        result = quick_fold(model, channel_ratio=0.5)
        assert [(g.width, g.folded_width) for g in result.report.groups] == [(8, 4), (8, 4)]
        assert result.report.sparsity == 0.5
        for a, b in zip(_outputs(model), _outputs(result.model), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
        assert model.SerializeToString() == before


def test_a_network_is_run_whose_bodies_hold_bodies() -> None:
    """A weight of the main graph that only a body inside a body reads is found where it is."""
    model = nested_choice()
    result = quick_fold(model, channel_ratio=0.5)
    assert [(g.width, g.folded_width) for g in result.report.groups] == [(8, 4)] * 3
    assert result.report.inputs is not None
    x = np.random.default_rng(2).standard_normal((5, 4)).astype(np.float32)
    for flag in (True, False):
        feeds = {"flag": np.array(flag), "given": x}
        np.testing.assert_allclose(run(model, feeds)[0], run(result.model, feeds)[0], rtol=1e-4, atol=1e-5)


def test_a_network_is_run_whose_body_computes_with_constants_of_the_main_graph() -> None:
    """The normal form of the body holds the result; until it is written back, the node reads the constants."""
    model = nested_choice()
    outer = next(node for node in model.graph.node if node.op_type == "If")
    around = next(attr.g for attr in outer.attribute if attr.name == "then_branch")
    (inner,) = around.node
    inner.output[0] = "inner"
    constants = {"one": np.float32(1.0), "two": np.float32(2.0)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(v, name) for name, v in constants.items())
    around.node.append(onnx.helper.make_node("Sub", ["two", "one"], ["shift"]))
    around.node.append(onnx.helper.make_node("Add", ["inner", "shift"], ["y"]))
    result = quick_fold(model, channel_ratio=0.5)
    assert [(g.width, g.folded_width) for g in result.report.groups] == [(8, 4)] * 3
    assert result.report.inputs is not None
    assert constants.keys().isdisjoint(t.name for t in result.model.graph.initializer)
    feeds = {"flag": np.array(True), "given": np.ones((2, 4), np.float32)}
    np.testing.assert_allclose(run(model, feeds)[0], run(result.model, feeds)[0], rtol=1e-4, atol=1e-5)


def test_a_sparsity_is_met_over_all_bodies() -> None:
    assert abs(quick_fold(choice(weights_outside=False), 0.25).report.sparsity - 0.25) <= 0.01


def test_inspect_counts_the_bodies() -> None:
    found = api.inspect_model(choice(weights_outside=False))
    assert found.share.either == 1.0
    assert {r.node for r in found.refusals} == {"then_up", "then_down", "other_up", "other_down"}
    assert any("model's input 'x'" in r.reason for r in found.refusals)


def test_weights_read_by_both_branches_stay() -> None:
    """The same matrix in two bodies would have to be cut alike in both: it is left alone, with a reason."""
    model = choice(weights_outside=True)
    for attr in model.graph.node[0].attribute:
        attr.g.node[0].input[1] = "then_w1"
    result = api.inspect_model(model)
    assert result.groups == []
    assert any("then_w1" in r.reason for r in result.refusals)


@pytest.mark.parametrize(("most", "folded"), [(0, 0), (1, 1), (2, 2)])
def test_bodies_behind_the_last_that_is_opened_stay(most: int, folded: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree of ten thousand small bodies took minutes; what is not looked into computes what it did."""
    monkeypatch.setattr(open_model, "_MOST_BODIES", most)
    model = choice(weights_outside=True)
    found = api.inspect_model(model)
    assert len(found.groups) == folded
    assert any(f"only the first {most} bodies" in note for note in found.notes)
    if folded:
        result = quick_fold(model, channel_ratio=0.5)
        for a, b in zip(_outputs(model), _outputs(result.model), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_thirty_bodies_inside_each_other_take_no_time() -> None:
    def body(depth: int) -> onnx.GraphProto:
        declared = [onnx.helper.make_tensor_value_info(f"o{depth}", onnx.TensorProto.FLOAT, ["n", 4])]
        if not depth:
            return onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["o0"])], "g0", [], declared)
        other = onnx.helper.make_graph(
            [onnx.helper.make_node("Neg", ["x"], [f"e{depth}"])], f"e{depth}", [],
            [onnx.helper.make_tensor_value_info(f"e{depth}", onnx.TensorProto.FLOAT, ["n", 4])],
        )  # fmt: skip
        branches = {"then_branch": body(depth - 1), "else_branch": other}
        node = onnx.helper.make_node("If", ["flag"], [f"o{depth}"], f"if{depth}", **branches)
        return onnx.helper.make_graph([node], f"g{depth}", [], declared)

    graph = body(30)
    graph.input.extend([
        onnx.helper.make_tensor_value_info("flag", onnx.TensorProto.BOOL, []),
        onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4]),
    ])  # fmt: skip
    before = time.process_time()
    api.inspect_model(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]))
    assert time.process_time() - before < 10
