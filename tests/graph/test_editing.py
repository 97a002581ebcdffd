"""Whatever is edited through the view, what it derives from the graph is what a fresh view of that graph derives."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from onnxfold.graph.bodies import open_bodies
from onnxfold.graph.files.load import load
from onnxfold.graph.nodes import node_key, rewritten, with_input
from onnxfold.graph.view import GraphView
from testing.graph_builder import GraphBuilder
from testing.models import ALL_MODELS


def _derived(view: GraphView) -> dict[str, Any]:
    names = [*view.input_names, *view.weights, *(o for n in view.nodes for o in n.output)]
    names += [i for n in view.nodes for i in n.input]
    larger = {name: (7, *(d or 1 for d in shape[1:])) for name in view.input_names if (shape := view.shape(name))}
    types = view.types_for(larger)
    return {
        name: (
            view.shape(name),
            types[name][:2] if name in types else None,
            view.elem_type(name),
            view.producer(name),
            [node_key(n) for n in view.consumers(name)],
            view.fresh_name(name),
        )
        for name in names
    }


def _fresh(view: GraphView) -> GraphView:
    model = ModelProto()
    model.CopyFrom(view.model)
    fresh = GraphView(model, view.weights, view.namespace)
    fresh.assume(view.input_shapes)
    return fresh


def _node(view: GraphView, key: str) -> Any:
    node = view.producer(key)
    assert node is not None
    return node


def _append_bias(view: GraphView) -> None:
    conv = _node(view, "conv_0_out")
    view.fill_input(conv, 2, view.add_weight("bias", np.zeros(8, np.float32)))


EDITS: dict[str, Callable[[GraphView], object]] = {
    "replace_nodes": lambda v: v.replace_nodes(
        n if n.name != "relu_0" else helper.make_node("Shape", n.input, n.output) for n in v.nodes
    ),
    "substitute": lambda v: v.substitute({"relu_0_out": helper.make_node("Shape", ["x"], ["relu_0_out"])}),
    "substitute-and-remove": lambda v: v.substitute(
        {"relu_0_out": with_input(_node(v, "relu_0_out"), 0, "conv_0_out")}, removed=["bn_0_out"]
    ),
    "expand": lambda v: v.expand(
        {"relu_0_out": [helper.make_node(o, [a], [b]) for o, a, b in (("Shape", "x", "s"), ("Abs", "s", "relu_0_out"))]}
    ),
    "rename_inputs": lambda v: v.rename_inputs({"bn_0_out": "conv_0_out"}),
    "fill_input": _append_bias,
    "replace_model": lambda v: v.replace_model(load(ALL_MODELS["flatten_conv"](0)).model),
    "drop_inferable_infos": lambda v: v.drop_inferable_infos(),
    "drop_lost_infos": lambda v: v.drop_lost_infos(),
    "assume": lambda v: v.assume({"x": (5, 3, 8, 8)}),
    "fix_input_shapes": lambda v: v.fix_input_shapes({"x": (5, None)}),
    "declare_input": lambda v: v.declare_input("x", TensorProto.DOUBLE, [None, 3, 16, 16]),
    "give_out": lambda v: v.give_out(["relu_0_out"]),
    "resize": lambda v: v.resize({"x": {2: 16, 3: 16}}),
    "unlist_weights": lambda v: v.unlist_weights(),
    "set_weight": lambda v: v.set_weight("conv_0_w", np.zeros((5, 3, 3, 3))),
    "put_weights": lambda v: v.put_weights({"conv_0_w": np.zeros((5, 3, 3, 3), np.float32)}),
    "add_weight": lambda v: v.add_weight("more", np.zeros(3, np.float32)),
    "rename_weights": lambda v: v.rename_weights(lambda name: f"{name}_renamed"),
    "remove_weights": lambda v: v.remove_weights([v.add_weight("unread", np.zeros(3, np.float32))]),
}


@pytest.mark.parametrize("edit", EDITS)
def test_nothing_stale_is_told(edit: str) -> None:
    view = load(ALL_MODELS["residual"](0))
    if edit == "unlist_weights":
        view.model.graph.input.add(name="conv_0_w")
    _derived(view)  # everything is derived once before the edit
    EDITS[edit](view)
    assert _derived(view) == _derived(_fresh(view))


def test_every_way_to_edit_is_tried() -> None:
    reads = {"opset", "producer", "consumers", "is_weight", "find_weight", "weight", "weight_size",
             "float_weight_names", "weight_type", "held", "fresh_name", "fresh_names", "shape", "symbols", "elem_type",
             "types_for", "copy", "end_runs", "without_assumptions"}  # fmt: skip
    elsewhere = {"put_body", "lend_weights", "take_back"}  # see below
    elsewhere.add("learn")  # tells what shape inference does not find: tests/graph/test_learned_shapes.py
    methods = {name for name, value in vars(GraphView).items() if callable(value) and not name.startswith("_")}
    assert methods - reads - elsewhere == {edit.split("-")[0] for edit in EDITS}


def test_a_body_that_is_written_back_is_seen() -> None:
    """Also weights that it took along: the graph around it finds them while it is open, and not after that."""
    g = GraphBuilder("net", 0, (3, 8, 8))
    g.output(g.head(g.conv("x", 6)))
    inner = helper.make_graph(
        [helper.make_node("Mul", ["x", "factor"], ["inner"])],
        "body",
        [],
        [helper.make_empty_tensor_value_info("inner")],
    )
    model = g.build()
    weights = {"yes": np.array(True), "factor": np.ones(1, np.float32)}
    view = load(model)
    view.put_weights(weights)
    branch = helper.make_node("If", ["yes"], ["branch"], then_branch=inner, else_branch=inner)
    view.replace_nodes([*view.nodes, branch])
    for attr in _node(view, "branch").attribute:
        if attr.name == "then_branch":
            attr.g.node[0].input[1] = "x"
    _derived(view)
    body = next(iter(open_bodies(view)))
    assert body.view.namespace == "branch/else_branch/"
    assert (body.view.is_weight("factor"), view.is_weight("factor")) == (True, False)
    assert view.find_weight("factor") is body.view.weights["factor"]
    kept = dict(body.view.weights)
    body.view.remove_weights(["factor"])  # as where it computes with it once and for all
    body.return_weights(kept)
    assert view.find_weight("factor") is view.weights["factor"]
    body.close()
    assert not view.is_weight("factor")
    view.put_weights(kept)
    body = next(iter(open_bodies(view)))
    assert view.copy().weight("factor").tolist() == [1.0]
    body.view.set_weight("factor", np.full(1, 2.0))
    assert view.weight("factor").tolist() == [2.0]
    body.view.substitute({"inner": helper.make_node("Add", ["factor", "conv_0_out"], ["inner"])})
    body.close()
    assert view.find_weight("factor") is None
    assert [node_key(n) for n in view.consumers("conv_0_out")][-1] == "branch"
    assert _derived(view) == _derived(_fresh(view))


def test_a_rewritten_node_leaves_the_old_one() -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], "conv", pads=[1, 1, 1, 1], group=1)
    node.attribute[0].doc_string = "kept"
    made = rewritten(node, inputs=["x", "v", "b"], attributes={node.attribute[0].name: 2, "strides": [2, 2]})
    assert list(node.input) == ["x", "w"]
    assert list(made.input) == ["x", "v", "b"]
    assert [a.name for a in made.attribute] == [*(a.name for a in node.attribute), "strides"]
    assert made.attribute[0].doc_string == "kept"
    assert made.attribute[0].i == 2
    assert [a.name for a in rewritten(node, without=["group"]).attribute] == ["pads"]
    assert not made.attribute[1].HasField("doc_string")
