"""Patterns of nodes: what they match, and why they do not."""

import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfold.graph.files.load import load
from onnxfold.graph.patterns import Match, Mismatch, Op, chain, find_match, only_reader, scaled
from onnxfold.graph.view import GraphView
from testing.models import ALL_MODELS

_ERF = Op("Erf", (scaled("x", 1 / math.sqrt(2)),))
GELU = Op("Mul", ("x", scaled(Op("Add", (_ERF, 1.0)), 0.5)))


def _match(view: GraphView, tensor: str, pattern: Op, *, shared: bool = False) -> Match:
    node = view.producer(tensor)
    assert node is not None
    return find_match(view, node, pattern, shared=shared)


def _gelu(*, turned: bool = False, half: float = 0.5, outer: str = "x", outputs: tuple[str, ...] = ("y",)) -> GraphView:
    """Return x ((erf(x / sqrt(2)) + 1) half), inputs of sums and products the other way round where they are turned."""
    step = -1 if turned else 1
    numbers = {"root": math.sqrt(2), "one": 1.0, "half": half}
    nodes = [
        helper.make_node("Div", ["x", "root"], ["a"]),
        helper.make_node("Erf", ["a"], ["b"]),
        helper.make_node("Add", ["b", "one"][::step], ["c"]),
        helper.make_node("Mul", ["c", "half"][::step], ["d"]),
        helper.make_node("Mul", [outer, "d"][::step], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in ("x", "z")]
    weights = [numpy_helper.from_array(np.array(v, np.float32), name) for name, v in numbers.items()]
    graph = helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name=o) for o in outputs], weights)
    return load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


@pytest.mark.parametrize("turned", [False, True])
def test_an_expression_is_matched_in_any_order_of_its_inputs(turned: bool) -> None:
    match = _match(_gelu(turned=turned), "y", GELU)
    assert match.tensors == {"x": "x"}
    assert [node.output[0] for node in match.nodes] == ["a", "b", "c", "d", "y"]


def test_every_mismatch_has_a_reason() -> None:
    for view, pattern, reason in (
        (_gelu(half=0.25), GELU, "'half' is 0.25, not 0.5"),
        (_gelu(outer="z"), GELU, "stands in the place of"),
        (_gelu(outputs=("y", "c")), GELU, "others read 'c', too"),
        (_gelu(), Op("Relu"), "Mul stands in the place of Relu"),
        (_gelu(), chain("Relu", "Mul"), "Mul stands in the place of Relu|no Relu computes"),
    ):
        with pytest.raises(Mismatch, match=reason):
            _match(view, "y", pattern)
    assert len(_match(_gelu(outputs=("y", "c")), "y", GELU, shared=True).nodes) == 5


def test_a_chain_ends_where_others_read() -> None:
    view = load(ALL_MODELS["residual"](0))
    match = _match(view, "relu_0_out", chain("Conv", "BatchNormalization", "Relu|Sigmoid"))
    assert [n.name for n in match.nodes] == ["conv_0", "bn_0", "relu_0"]
    with pytest.raises(Mismatch, match="others read 'relu_0_out', too"):  # an Add reads it
        _match(view, "conv_1_out", chain("Relu", "Conv"))


def test_an_output_of_the_graph_has_no_only_reader() -> None:
    model = ALL_MODELS["chain_conv"](0)
    reader = only_reader(load(model), "conv_0_out")
    assert reader is not None
    model.graph.output.add(name="conv_0_out")
    assert only_reader(load(model), "conv_0_out") is None
