"""Groups through convolutions and products: who produces, who consumes, what is refused and why."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from testing.graph_builder import GraphBuilder
from testing.models import ALL_MODELS
from tests.channels.describe import groups, reasons

IMAGE = (3, 8, 8)
Body = Callable[[GraphBuilder], str]


def build(body: Body, shape: tuple[int, ...] = IMAGE) -> onnx.ModelProto:
    g = GraphBuilder("net", 0, shape)
    g.output(body(g))
    return g.build()


def _grouped(g: GraphBuilder, groups: int, outputs: int) -> str:
    return g.head(g.conv(g.conv(g.conv("x", 6), outputs, groups=groups), 8))


def _concat_into_grouped(g: GraphBuilder, *widths: int) -> str:
    """Branches of these widths, joined, in front of a convolution with two groups."""
    return g.head(g.conv(g.concat(*(g.conv("x", w) for w in widths)), 4, groups=2))


def _two_groupings(g: GraphBuilder, first: int, second: int) -> str:
    h = g.conv("x", 12)
    return g.head(g.add(g.conv(h, 12, groups=first), g.conv(h, 12, groups=second)))


def _out_channels_one(g: GraphBuilder) -> str:
    """One filter over all channels is not depthwise (Torch-Pruning #179)."""
    return g.flatten(g.conv(g.conv("x", 6), 1, kernel=1))


def _in_channels_one(g: GraphBuilder) -> str:
    return g.head(g.conv(g.conv(g.conv("x", 1), 6), 8))


def _siamese(g: GraphBuilder) -> str:
    """One filter bank in two branches: their channels stay coupled."""
    first = g.conv("x", 6)
    second = g.node("Conv", [g.unary("Neg", "x"), "conv_0_w", "conv_0_b"], g.shapes[first], "twin", pads=[1, 1, 1, 1])
    return g.add(g.head(first), g.head(second))


def _tied(g: GraphBuilder) -> str:
    """One matrix writes channels in one layer and reads them in another."""
    h = g.relu(g.gemm("x", 7, bias=None))
    return g.gemm(g.node("Gemm", [h, "gemm_0_w"], [7], "tied"), 5)


def _computed_weight(g: GraphBuilder, op: str) -> str:
    weight = g.conv("x", 4) if op != "Gemm" else g.flatten(g.conv("x", 4))
    h = g.conv("x", 4) if op != "Gemm" else g.flatten(g.conv("x", 4))
    return g.flatten(g.node(op, [h, weight], [1, 1, 1])) if op != "Gemm" else g.node(op, [h, weight], [4], transB=1)


def _hidden_norm(g: GraphBuilder) -> str:
    """A BatchNormalization with statistics that are computed at run time."""
    h = g.conv("x", 6)
    mean = g.node("ReduceMean", [h], [6], axes=[0, 2, 3], keepdims=0)
    ones = [g.constant(name, np.ones(6, np.float32)) for name in ("gamma", "beta", "var")]
    return g.head(g.node("BatchNormalization", [h, ones[0], ones[1], mean, ones[2]], g.shapes[h], "norm"))


def _attention(g: GraphBuilder) -> str:
    """Two heads of width 3; heads are the units, nothing mixes inside a head."""
    parts = []
    for name in ("query", "key", "value"):
        flat = g.matmul_add("x", 6)
        heads = g.node("Reshape", [flat, g.constant(f"{name}_shape", np.array([0, 4, 2, 3]))], [4, 2, 3])
        perm = [0, 2, 3, 1] if name == "key" else [0, 2, 1, 3]
        parts.append(g.node("Transpose", [heads], [2, 3, 4] if name == "key" else [2, 4, 3], perm=perm))
    query, key, value = parts
    weights = g.node("Softmax", [g.node("MatMul", [query, key], [2, 4, 4])], [2, 4, 4], axis=-1)
    heads = g.node("MatMul", [weights, value], [2, 4, 3])
    joined = g.node("Transpose", [heads], [4, 2, 3], perm=[0, 2, 1, 3])
    flat = g.node("Reshape", [joined, g.constant("joined_shape", np.array([0, 4, 6]))], [4, 6])
    return g.matmul_add(flat, 5)


GROUPS: dict[str, tuple[Body, list[str]]] = {
    "dense": (
        lambda g: g.head(g.conv(g.conv("x", 6), 8)),
        ["conv_0 6: +conv_0_w.0 -conv_1_w.1 b:conv_0_b.0", "conv_1 8: +conv_1_w.0 -gemm_0_w.1 b:conv_1_b.0"],
    ),
    "depthwise": (
        lambda g: g.head(g.conv(g.conv("x", 6), 6, groups=6)),
        ["conv_0 6: +conv_0_w.0 +conv_1_w.0 -gemm_0_w.1 b:conv_0_b.0 b:conv_1_b.0"],
    ),
    "depthwise, multiplier": (
        lambda g: g.head(g.conv(g.conv("x", 6), 18, groups=6)),
        ["conv_0 6: +conv_0_w.0 +conv_1_w.0*3 -gemm_0_w.1*3 b:conv_0_b.0 b:conv_1_b.0*3"],
    ),
    "grouped, more groups than outputs per group": (
        lambda g: _grouped(g, 3, 9),
        [
            "conv_0 6/3: +conv_0_w.0 -conv_1_w.1 b:conv_0_b.0",
            "conv_1 9/3: +conv_1_w.0 -conv_2_w.1 b:conv_1_b.0",
            "conv_2 8: +conv_2_w.0 -gemm_0_w.1 b:conv_2_b.0",
        ],
    ),
    "two ways of grouping that agree": (
        lambda g: _two_groupings(g, 2, 4),
        [
            "conv_0 12/4: +conv_0_w.0 -conv_1_w.1 -conv_2_w.1 b:conv_0_b.0",
            "conv_1 12/4: +conv_1_w.0 +conv_2_w.0 -gemm_0_w.1 b:conv_1_b.0 b:conv_2_b.0",
        ],
    ),
    "two ways of grouping that cut unequal parts": (lambda g: _two_groupings(g, 2, 3), []),
    "branches that each fill a group": (
        lambda g: _concat_into_grouped(g, 4, 4),
        ["conv_2 4/2: +conv_2_w.0 -gemm_0_w.1 b:conv_2_b.0"],
    ),
    "branches that spread over both groups": (
        lambda g: g.head(g.conv(g.concat(*[g.conv("x", 6)] * 2), 4, groups=2)),
        [
            "conv_0 6: +conv_0_w.0 -conv_1_w.1*2 b:conv_0_b.0",
            "conv_1 4/2: +conv_1_w.0 -gemm_0_w.1 b:conv_1_b.0",
        ],
    ),
    "one output channel": (_out_channels_one, ["conv_0 6: +conv_0_w.0 -conv_1_w.1 b:conv_0_b.0"]),
    "one input channel": (
        _in_channels_one,
        ["conv_1 6: +conv_1_w.0 -conv_2_w.1 b:conv_1_b.0", "conv_2 8: +conv_2_w.0 -gemm_0_w.1 b:conv_2_b.0"],
    ),
    "transposed": (
        lambda g: g.head(g.conv_transpose(g.conv("x", 6), 8)),
        [
            "conv_0 6: +conv_0_w.0 -convtranspose_0_w.0 b:conv_0_b.0",
            "convtranspose_0 8: +convtranspose_0_w.1 -gemm_0_w.1 b:convtranspose_0_b.0",
        ],
    ),
    "transposed, depthwise": (
        lambda g: g.head(g.conv_transpose(g.conv("x", 6), 12, groups=6)),
        ["conv_0 6: +conv_0_w.0 +convtranspose_0_w.0 -gemm_0_w.1*2 b:conv_0_b.0 b:convtranspose_0_b.0*2"],
    ),
    "transposed, grouped": (
        lambda g: g.head(g.conv_transpose(g.conv("x", 6), 8, groups=2)),
        [
            "conv_0 6/2: +conv_0_w.0 -convtranspose_0_w.0 b:conv_0_b.0",
            "convtranspose_0 8/2: +convtranspose_0_w.1 -gemm_0_w.1 b:convtranspose_0_b.0",
        ],
    ),
    "siamese": (_siamese, ["conv_0 6: +conv_0_w.0 -gemm_0_w.1 -gemm_1_w.1 b:conv_0_b.0 b:conv_0_b_copy.0"]),
    "attention": (
        _attention,
        [
            "matmul_0 2: +matmul_0_w.1*3 +matmul_1_w.1*3 +matmul_2_w.1*3 -matmul_5_w.0*3 "
            "b:matmul_0_b.0*3 b:matmul_1_b.0*3 b:matmul_2_b.0*3"
        ],
    ),
}


@pytest.mark.parametrize("name", GROUPS)
def test_groups(name: str) -> None:
    body, expected = GROUPS[name]
    assert groups(build(body, (4, 7) if name == "attention" else IMAGE)) == expected


@pytest.mark.parametrize(
    ("body", "axis", "words"),
    [
        (
            lambda g: _two_groupings(g, 2, 3),
            "conv_0_w.0",
            ["Conv 'conv_1'", "the parts that it cuts the axis into would become unequal"],
        ),
        (
            lambda g: _concat_into_grouped(g, 4, 8),
            "conv_0_w.0",
            ["Conv 'conv_2'", "the parts that it cuts the axis into would become unequal"],
        ),
        (_hidden_norm, "conv_0_w.0", ["BatchNormalization 'norm'", "its mean is computed at run time"]),
        (
            lambda g: _computed_weight(g, "Gemm"),
            "conv_0_w.0",
            ["Gemm 'gemm_0'", "multiplies two activations: a merged channel would be counted once, not twice"],
        ),
    ],
)
def test_refusals_name_the_node_and_the_reason(body: Body, axis: str, words: list[str]) -> None:
    model = build(body)
    for word in words:
        assert word in reasons(model)[axis]


def test_a_weight_in_different_roles_is_refused() -> None:
    model = build(_tied, (7,))
    assert not [line for line in groups(model) if "gemm_0_w" in line]
    assert (
        "the weight 'gemm_0_w' is shared by nodes that use this axis in different ways" in reasons(model)["gemm_0_w.0"]
    )


def test_contraction_of_two_activations_is_refused() -> None:
    """Channels that are summed over without a weight would be counted once instead of twice."""

    def body(g: GraphBuilder) -> str:
        flat = [
            g.node("Reshape", [g.conv("x", 6), g.constant(f"t{i}", np.array([0, 6, 64]))], [6, 64]) for i in range(2)
        ]
        product = g.node("MatMul", [g.node("Transpose", [flat[0]], [64, 6], perm=[0, 2, 1]), flat[1]], [64, 64], "gram")
        return g.flatten(product)

    model = build(body)
    assert groups(model) == []
    assert "MatMul 'gram': it sums over this axis of two activations" in reasons(model)["conv_0_w.0"]


def test_every_batch_norm_vector_is_a_member() -> None:
    model = ALL_MODELS["residual"](0)
    from onnxfold import inspect

    (stream,) = [g for g in inspect(model) if g.name == "conv_0"]
    found = {m.axis.tensor for m in stream.members}
    assert {f"bn_{i}_{part}" for i in (0, 2) for part in ("gamma", "beta", "mean", "var")} <= found
