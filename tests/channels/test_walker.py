"""What never depends on an operator: the interface stays, the unknown is blocked and named, subgraphs and sharing."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from onnxfold.channels import find_groups, walker
from onnxfold.channels.context import CannotDeclareError, ChannelRule, NodeContext
from onnxfold.channels.declarations import Axis, Block, Role
from onnxfold.errors import NothingToFoldError
from onnxfold.graph.files.load import load
from testing.graph_builder import GraphBuilder
from testing.models import ALL_MODELS, grouped_conv, random_input, run
from testing.quick import quick_fold
from tests.channels.describe import groups, reasons


def _chain() -> onnx.ModelProto:
    return ALL_MODELS["chain_conv_plain"](0)


@pytest.mark.parametrize("name", ALL_MODELS)
def test_inputs_and_outputs_never_fold(name: str) -> None:
    model = ALL_MODELS[name](0)
    view = load(model)
    interface = {*view.input_names, *view.output_names}
    found = find_groups(view).groups
    assert found
    assert not {axis.tensor for g in found for axis in g.tensors} & interface
    before = {o.name: [d.dim_value for d in o.type.tensor_type.shape.dim] for o in model.graph.output}
    after = quick_fold(model, channel_ratio=0.5, method="fold-naive", verify=False).model
    assert before == {o.name: [d.dim_value for d in o.type.tensor_type.shape.dim] for o in after.graph.output}


def test_unknown_operator_blocks_and_is_named() -> None:
    model = _chain()
    for node in model.graph.node:
        if node.name == "relu_0":
            node.op_type, node.domain, node.name = "Mystery", "com.example", "the mystery"
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    reason = "Mystery 'the mystery': no channel rule says how this operator treats the axis"
    assert reasons(model)["conv_0_w.0"] == reason
    shape = ["batch", 6, 8, 8]
    model.graph.value_info.append(helper.make_tensor_value_info("relu_0_out", TensorProto.FLOAT, shape))
    assert groups(model) == [
        "conv_1 8: +conv_1_w.0 -gemm_0_w.1 b:conv_1_b.0"
    ]  # goes on behind it, as its shape is given
    assert reasons(model)["conv_1_w.1"] == reason


def test_standard_operator_without_a_rule_blocks_too() -> None:
    g = GraphBuilder("net", 0, (3, 8, 8))
    g.output(g.head(g.node("Bernoulli", [g.conv("x", 6)], [6, 8, 8], "the coin")))
    assert reasons(g.build()) == {
        "conv_0_w.0": "Bernoulli 'the coin': no channel rule says how this operator treats the axis",
        "gemm_0_w.1": "Bernoulli 'the coin': no channel rule says how this operator treats the axis",
    }


def test_folding_nothing_is_an_error_that_says_why() -> None:
    g = GraphBuilder("net", 0, (3, 8, 8))
    g.output(g.head(g.node("Bernoulli", [g.conv("x", 60)], [60, 8, 8], "the coin")))
    with pytest.raises(NothingToFoldError, match="the coin"):
        quick_fold(g.build(), channel_ratio=0.5)


def _with_if(model: onnx.ModelProto, captured: str) -> onnx.ModelProto:
    """Add an If whose branches read an activation of the main graph by name."""
    size = next(d for v in onnx.shape_inference.infer_shapes(model).graph.value_info if v.name == captured for d in [v])
    branches = []
    for name, op in (("then", "Relu"), ("else", "Neg")):
        info = onnx.ValueInfoProto()
        info.CopyFrom(size)
        info.name = f"{name}_out"
        branches.append(helper.make_graph([helper.make_node(op, [captured], [f"{name}_out"])], name, [], [info]))
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0), "threshold"))
    model.graph.node.extend(
        [
            helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
            helper.make_node("Greater", ["total", "threshold"], ["positive"]),
            helper.make_node(
                "If", ["positive"], ["chosen"], name="the choice", then_branch=branches[0], else_branch=branches[1]
            ),
        ]
    )
    model.graph.output.append(onnx.ValueInfoProto(name="chosen", type=size.type))
    return model


def test_a_tensor_that_a_subgraph_captures_stays() -> None:
    model = _with_if(_chain(), "relu_0_out")
    assert groups(model) == ["conv_1 8: +conv_1_w.0 -gemm_0_w.1 b:conv_1_b.0"]
    assert reasons(model)["conv_0_w.0"] == "If 'the choice': it is read inside a subgraph"
    result = quick_fold(model, channel_ratio=0.5)
    feeds = random_input(model, 0)
    np.testing.assert_array_equal(run(model, feeds)[1], run(result.model, feeds)[1])


def test_a_weight_that_somebody_else_reads_whole_stays() -> None:
    """An output, an operator without a rule: on the plain axes of a weight and on the packed one of a grouped conv."""
    model = grouped_conv(0)
    model.graph.output.append(helper.make_tensor_value_info("conv_1_w", TensorProto.FLOAT, [12, 6, 3, 3]))
    assert [line.split()[0] for line in groups(model)] == ["conv_2"]
    assert "it is the model's output 'conv_1_w'" in str(find_groups(load(model)).refusals)

    model = grouped_conv(0)
    rest = [
        helper.make_node("ReduceMax", ["x"], ["largest"], keepdims=0),
        helper.make_node("Cast", ["largest"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Mul", ["whole", "none"], ["zero"]),
        helper.make_node("Add", ["places", "zero"], ["computed"]),
        helper.make_node("GatherND", ["conv_1_w", "computed"], ["picked"], name="the picker"),
    ]
    model.graph.node.extend(rest)
    model.graph.initializer.append(numpy_helper.from_array(np.array(0), "none"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([[11, 5]]), "places"))
    model.graph.output.append(helper.make_tensor_value_info("picked", TensorProto.FLOAT, [1, 3, 3]))
    assert [line.split()[0] for line in groups(model)] == ["conv_2"]
    assert "GatherND 'the picker'" in reasons(model)["conv_1_w.1"]
    feeds = random_input(model, 0)
    folded = quick_fold(model, channel_ratio=0.5).model
    np.testing.assert_array_equal(run(model, feeds)[1], run(folded, feeds)[1])


def test_shared_vectors_do_not_couple_layers() -> None:
    """Optimisers deduplicate equal biases; the layers have nothing to do with each other."""
    model = ALL_MODELS["residual_plain"](0)
    for node in model.graph.node:
        if node.name in ("conv_1", "conv_2"):
            node.input[2] = "conv_0_b"
    assert [line.split(":")[0] for line in groups(model)] == [
        line.split(":")[0] for line in groups(ALL_MODELS["residual_plain"](0))
    ]


def test_nodes_without_names_are_named_after_their_outputs() -> None:
    model = _chain()
    for node in model.graph.node:
        node.name = ""
    assert [line.split(":")[0] for line in groups(model)] == ["conv_0_out 6", "conv_1_out 8"]


def test_nodes_whose_first_output_is_left_out() -> None:
    """Two LSTMs of which only the last state is read are still two nodes."""
    rng = np.random.default_rng(0)
    nodes, weights = [], [numpy_helper.from_array(np.array([0]), "first")]
    for i, hidden in enumerate((6, 4)):
        for name, shape in (("W", (1, 4 * hidden, 3)), ("R", (1, 4 * hidden, hidden)), ("M", (hidden, 5))):
            weights.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), f"{name}{i}"))
        nodes += [
            helper.make_node("LSTM", ["x", f"W{i}", f"R{i}"], ["", f"last{i}"], f"lstm{i}", hidden_size=hidden),
            helper.make_node("Squeeze", [f"last{i}", "first"], [f"flat{i}"]),
            helper.make_node("MatMul", [f"flat{i}", f"M{i}"], [f"part{i}"]),
        ]
    nodes.append(helper.make_node("Add", ["part0", "part1"], ["y"]))
    infos = [helper.make_tensor_value_info(n, 1, s) for n, s in (("x", [7, 2, 3]), ("y", [2, 5]))]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert [line.split(":")[0] for line in groups(model)] == ["lstm0 6", "lstm1 4"]
    folded = quick_fold(model, channel_ratio=0.5).model
    sizes = [a.i for n in folded.graph.node for a in n.attribute if a.name == "hidden_size"]
    assert sizes == [3, 2]


def test_symbolic_dimensions_can_be_given() -> None:
    """Flatten of an image of unknown size has no channels to follow; with the size it has."""
    model = ALL_MODELS["flatten_conv"](0)
    for axis, name in ((2, "H"), (3, "W")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    assert "conv_1" not in [g.name for g in onnxfold.inspect(model)]
    assert "--input-shapes" in reasons(model)["conv_1_w.0"]
    assert "conv_1" in [g.name for g in onnxfold.inspect(model, input_shapes={"x": (1, 3, 8, 8)})]


def test_a_rule_that_gives_up_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its declarations nor the channels that it had said to come through."""
    seen: list[NodeContext] = []

    def gives_up(node: NodeContext) -> None:
        seen.append(node)
        node.use(Axis("conv_0_w", 0), Role.PRODUCER, Axis("conv_0_out", 1))
        node.link(Axis("conv_0_out", 1), Axis("relu_0_out", 1))
        raise CannotDeclareError("it gave up")

    rule = ChannelRule("Conv", 1, gives_up, "it does not matter")
    monkeypatch.setattr(walker, "find_rule", lambda domain, op_type, version: rule if op_type == "Conv" else None)
    declarations = walker.declare(load(_chain()))
    assert seen
    assert all(isinstance(d, Block) for d in declarations)
    assert any(d.axis == Axis("conv_0_w", 0) and d.reason == "it gave up" for d in declarations if isinstance(d, Block))
    assert not seen[-1].is_live(Axis("conv_0_out", 1))
    assert not seen[-1].is_live(Axis("relu_0_out", 1))
