"""The editable view: names, shapes, overlays, copies, subgraphs, and weights along their axes."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from onnxfold.channels.declarations import Axis
from onnxfold.channels.group import Member, merge_axis, move_from_front, move_to_front, replaced_rows, taken_rows
from onnxfold.errors import ConfigError, UnsupportedModelError
from onnxfold.graph.files.load import load
from onnxfold.graph.nodes import captured_names, node_key
from testing.models import ALL_MODELS


def test_edits_do_not_reach_the_original() -> None:
    model = ALL_MODELS["residual"](0)
    before = model.SerializeToString()
    view = load(model)
    view.set_weight("conv_0_w", np.zeros((1, 3, 3, 3)))
    view.graph.node[0].name = "changed"
    view.add_weight("extra", np.ones(3, np.float32))
    assert model.SerializeToString() == before


def test_a_copy_is_independent() -> None:
    view = load(ALL_MODELS["residual"](0))
    copy = view.copy()
    copy.set_weight("conv_0_w", np.zeros((2, 3, 3, 3)))
    copy.graph.node[0].name = "changed"
    assert view.shape("conv_0_w") == (8, 3, 3, 3)
    assert copy.shape("conv_0_w") == (2, 3, 3, 3)
    assert view.graph.node[0].name != "changed"


def test_set_weight_keeps_the_type() -> None:
    view = load(ALL_MODELS["mlp"](0))
    view.set_weight("gemm_0_b", np.ones(12, np.float64))
    assert view.weight("gemm_0_b").dtype == np.float32
    assert view.elem_type("gemm_0_b") == TensorProto.FLOAT


def test_fresh_names_are_fresh() -> None:
    """Also towards tensors of subgraphs, which see the names of the graph around them."""
    body = helper.make_graph(
        [helper.make_node("Add", ["x", "outer"], ["then_out"])],
        "body", [], [helper.make_tensor_value_info("then_out", TensorProto.FLOAT, None)],
    )  # fmt: skip
    node = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    infos = [helper.make_tensor_value_info(n, t, None) for n, t in (("x", 1), ("c", 9), ("y", 1))]
    graph = helper.make_graph([node], "g", infos[:2], infos[2:], [numpy_helper.from_array(np.float32(1), "outer")])
    view = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    assert captured_names(node) == ["x", "outer"]
    for taken in ("x", "y", "outer", "c"):
        assert view.fresh_name(taken) == f"{taken}_1"
    assert view.fresh_name("new") == "new"
    assert view.add_weight("new", np.ones(1)) == "new"
    assert view.add_weight("new", np.ones(1)) == "new_1"


def test_captured_names_see_through_nested_bodies_and_shadowing() -> None:
    def out(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)

    inner = helper.make_graph([helper.make_node("Mul", ["far", "near"], ["i"])], "inner", [], [out("i")])
    nodes = [
        helper.make_node("Relu", ["a"], ["near"]),
        helper.make_node("If", ["flag"], ["j"], then_branch=inner, else_branch=inner),
        helper.make_node("Add", ["j", "own"], ["k"]),
    ]
    weight = numpy_helper.from_array(np.float32(1), "own")
    body = helper.make_graph(nodes, "body", [out("formal")], [out("k"), out("passed")], [weight])
    node = helper.make_node("Loop", ["n", "c", "s"], ["r"], body=body)
    assert captured_names(node) == ["a", "flag", "far", "passed"]


def test_node_key_is_the_first_named_output() -> None:
    assert node_key(helper.make_node("LSTM", ["x", "w", "r"], ["", "h"])) == "h"
    assert node_key(helper.make_node("Relu", ["x"], ["y"])) == "y"


def test_shapes_and_symbols() -> None:
    view = load(ALL_MODELS["flatten_conv"](0))
    assert view.shape("x") == (None, 3, 8, 8)
    assert view.symbols("x") == ("batch", "", "", "")
    assert view.symbols("relu_0_out")[0] == "batch"
    assert view.shape("flatten_0_out") == (None, 32)
    assert view.shape("no such tensor") is None
    view.set_weight("conv_0_w", np.zeros((4, 3, 3, 3)))  # shapes follow edits
    assert view.shape("conv_0_out") == (None, 4, 8, 8)


def test_stale_value_info_is_not_believed() -> None:
    model = ALL_MODELS["chain_conv"](0)
    model.graph.value_info.append(helper.make_tensor_value_info("conv_0_out", TensorProto.FLOAT, [1, 2, 3, 4]))
    assert load(model).shape("conv_0_out") == (None, 6, 8, 8)


def test_given_input_shapes() -> None:
    model = ALL_MODELS["chain_conv"](0)
    assert load(model, {"x": (7, 3, 8, 8)}).shape("relu_0_out") == (7, 6, 8, 8)
    for shapes, message in (
        ({"z": (1, 3, 8, 8)}, "is not an input; inputs: x"),
        ({"x": (1, 3, 8)}, "has 4 dimensions, 3 were given"),
        ({"x": (1, 4, 8, 8)}, "has the fixed shape"),
    ):
        with pytest.raises(ConfigError, match=message):
            load(model, shapes)


def test_a_model_without_computation_is_refused() -> None:
    model = ALL_MODELS["mlp"](0)
    del model.graph.node[:]
    with pytest.raises(UnsupportedModelError, match="nothing to fold"):
        load(model)


def test_consumers_and_producers() -> None:
    view = load(ALL_MODELS["residual"](0))
    assert [n.name for n in view.consumers("relu_0_out")] == ["conv_1", "add_0"]
    assert view.consumers("y") == []
    producer = view.producer("relu_0_out")
    assert producer is not None
    assert producer.name == "relu_0"
    assert view.producer("x") is None
    assert view.producer("conv_0_w") is None


# -- weights along their axes --------------------------------------------------------------------

SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))


@settings(max_examples=40)
@given(shape=SHAPES, blocks=st.integers(1, 3), axis=st.integers(0, 3), seed=st.integers(0, 999))
def test_to_front_and_back(shape: tuple[int, ...], blocks: int, axis: int, seed: int) -> None:
    """The packed axis of a grouped weight: entry j * width + t is entry t in the j-th block of axis 0."""
    blocks = 1 if axis == 0 else blocks
    values = np.random.default_rng(seed).standard_normal((shape[0] * blocks, *shape[1:]))
    front = move_to_front(values, axis, blocks)
    assert len(front) == values.shape[axis] * blocks
    np.testing.assert_array_equal(move_from_front(front, axis, blocks), values)
    for j in range(blocks):
        block = values[j * shape[0] : (j + 1) * shape[0]]
        for t in range(values.shape[axis]):
            np.testing.assert_array_equal(front[j * values.shape[axis] + t], np.take(block, t, axis))


def test_take_and_put() -> None:
    values = np.arange(24, dtype=np.float16).reshape(4, 6)
    member = Member(Axis("w", 1), np.array([[0, 3], [1, 4]]), ())
    rows = taken_rows(values, member)
    assert rows.dtype == np.float32  # half precision is computed in single
    np.testing.assert_array_equal(rows[1, 1], values[:, 4])
    replaced = replaced_rows(values, member, rows * 0)
    assert replaced.dtype == np.float16
    np.testing.assert_array_equal(replaced[:, [2, 5]], values[:, [2, 5]])
    assert not replaced[:, [0, 1, 3, 4]].any()
    assert values[0, 0] == 0  # the original is not written to


def test_merge_axis_keeps_places() -> None:
    """Two groups on one axis and a position of nobody's: each cluster stands where its representative stood."""
    values = np.arange(7.0)
    first = (np.array([[0], [2], [4]]), np.array([0, 1]), np.array([[0.5, 0, 0.5], [0, 1, 0]]))
    second = (np.array([[1], [5]]), np.array([1]), np.array([[1.0, 1.0]]))
    np.testing.assert_array_equal(merge_axis(values, 0, 1, [first, second]), [2, 2, 3, 6, 6])
