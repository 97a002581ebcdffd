"""Layers that multiply by a weight, and their fused forms."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from testing.graph_builder import GraphBuilder
from testing.rule_models.net import WIDTH, Middle


def through_einsum(g: GraphBuilder, x: str) -> str:
    """A constant mixes the channels; then two activations meet position by position, summed over the image."""
    mixed = g.node("Einsum", [x, g.constant("mix", g.normal(WIDTH, 8))], [8, 8, 8], equation="nchw,cd->ndhw")
    other = g.node("Einsum", [g.constant("left", g.normal(8, WIDTH)), x], [8, 8, 8], equation="dc, nchw -> ndhw")
    return g.node("Einsum", [mixed, other], [8], equation="ndhw,ndhw->nd")


def through_recurrent(op: str, **attrs: object) -> Middle:
    """The columns of the image are the sequence; channels go in, hidden units come out, in one or both directions."""
    gates, hidden = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], 5
    directions = 2 if attrs.get("direction") == "bidirectional" else 1

    def middle(g: GraphBuilder, x: str) -> str:
        pooled = g.node("ReduceMean", [x], [WIDTH, 8], axes=[2], keepdims=0)
        # The builder's shapes leave the batch axis out; here it comes second, so shapes are written as they are.
        g.nodes.append(helper.make_node("Transpose", [pooled], ["sequence"], name="by_column", perm=[2, 0, 1]))
        weights = [
            g.constant("W", g.normal(directions, gates * hidden, WIDTH)),
            g.constant("R", g.normal(directions, gates * hidden, hidden, std=0.5)),
            g.constant("B", g.normal(directions, 2 * gates * hidden)),
        ]
        if op == "LSTM":
            weights += ["", "", "", g.constant("P", g.normal(directions, 3 * hidden))]
        states = ["states", "last", "cell"] if op == "LSTM" else ["states", "last"]
        node = helper.make_node(op, ["sequence", *weights], states, name="recurrent", hidden_size=hidden, **attrs)
        g.nodes.append(node)
        g.nodes.append(helper.make_node("Transpose", ["last"], ["last_first"], perm=[1, 0, 2]))
        g.nodes.append(helper.make_node("Transpose", ["states"], ["states_first"], perm=[2, 1, 3, 0]))
        g.shapes["last_first"], g.shapes["states_first"] = (directions, hidden), (directions, hidden, 8)
        read = g.node("ReduceMax", ["states_first"], [directions, hidden], axes=[3], keepdims=0)
        total = g.add(read, "last_first")
        return g.node("ReduceSum", [total, g.constant("first", np.array([1], np.int64))], [hidden], keepdims=0)

    return middle


def through_fused_conv(g: GraphBuilder, x: str) -> str:
    weight, bias = g.constant("weight", g.normal(WIDTH, WIDTH, 1, 1)), g.constant("bias", g.normal(WIDTH))
    inputs = [x, weight, bias, x]
    return g.node("FusedConv", inputs, [WIDTH, 8, 8], domain="com.microsoft", activation="Relu", kernel_shape=[1, 1])


def through_fused_gemm(g: GraphBuilder, x: str) -> str:
    flat = g.flatten(g.global_average_pool(x))
    weight, bias = g.constant("weight", g.normal(8, WIDTH)), g.constant("bias", g.normal(8))
    return g.node("FusedGemm", [flat, weight, bias], [8], domain="com.microsoft", activation="Relu", transB=1)


def through_fused_matmul(g: GraphBuilder, x: str) -> str:
    flat = g.flatten(g.global_average_pool(x))
    return g.node(
        "FusedMatMul", [flat, g.constant("weight", g.normal(WIDTH, 8))], [8], domain="com.microsoft", alpha=0.5
    )


def through_conv_transpose(g: GraphBuilder, x: str) -> str:
    dense = g.conv_transpose(x, 8)
    return g.conv_transpose(g.conv_transpose(dense, 8, groups=8), 8, groups=2)


def through_matmul(g: GraphBuilder, x: str) -> str:
    """Constant on the left (mixing channels), then two activations, of which only the outer axes are channels."""
    flat = g.node("Reshape", [x, g.constant("target", np.array([0, WIDTH, 64], np.int64))], [WIDTH, 64])
    left = g.node("MatMul", [g.constant("left", g.normal(8, WIDTH)), flat], [8, 64])
    other = g.node("Transpose", [left], [64, 8], perm=[0, 2, 1])
    outer = g.node("MatMul", [flat, other], [WIDTH, 8])
    mixed = g.matmul_add(g.node("Transpose", [outer], [8, WIDTH], perm=[0, 2, 1]), 3)
    return g.node("ReduceMean", [mixed], [8], axes=[-1], keepdims=0)


def through_gemm(g: GraphBuilder, x: str) -> str:
    return g.relu(g.gemm(g.flatten(x), 8, trans_b=False, alpha=0.5))


def through_conv(g: GraphBuilder, x: str) -> str:
    return g.conv(g.conv(x, 2 * WIDTH, groups=WIDTH), 2 * WIDTH, groups=3)


def with_initial_states(model: onnx.ModelProto, value: float) -> onnx.ModelProto:
    """Fill the initial states of the recurrence of a rule's model; their size is computed from the batch."""
    numbers = {"one": [1], "hidden": [5], "zero": [0], "two": [2]}
    tensors = [numpy_helper.from_array(np.array(v, np.int64), f"state_{n}") for n, v in numbers.items()]
    fill = numpy_helper.from_array(np.array([value], np.float32))
    nodes = [
        helper.make_node("Shape", ["x"], ["state_sizes"]),
        helper.make_node("Slice", ["state_sizes", "state_zero", "state_one"], ["state_batch"]),
        helper.make_node("Concat", ["state_two", "state_batch", "state_hidden"], ["state_shape"], axis=0),
        helper.make_node("ConstantOfShape", ["state_shape"], ["state_all"], value=fill),
        helper.make_node("Slice", ["state_all", "state_zero", "state_one", "state_zero"], ["initial"]),
    ]
    (recurrent,) = (node for node in model.graph.node if node.name == "recurrent")
    count = 7 if recurrent.op_type == "LSTM" else 6
    recurrent.input.extend([""] * (count - len(recurrent.input)))
    recurrent.input[5:count] = ["initial"] * (count - 5)
    kept = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes, *kept])
    model.graph.initializer.extend(tensors)
    return model
