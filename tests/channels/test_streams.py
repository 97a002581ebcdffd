"""Groups through what joins, cuts and reshapes: Concat, Split, Slice, Pad, Gather, Flatten, Reshape, gates."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper

from onnxfold.graph.files.load import load
from onnxfold.passes.normalize.pipelines import NORMALIZE
from testing.graph_builder import GraphBuilder
from testing.rule_models.table import RULE_MODELS
from tests.channels.describe import groups, reasons

IMAGE = (3, 8, 8)
Body = Callable[[GraphBuilder], str]


def build(body: Body, shape: tuple[int, ...] = IMAGE) -> onnx.ModelProto:
    g = GraphBuilder("net", 0, shape)
    g.output(body(g))
    return g.build()


def _split(g: GraphBuilder, x: str, *sizes: int) -> list[str]:
    parts = [f"part_{i}" for i in range(len(sizes))]
    g.nodes.append(helper.make_node("Split", [x, g.constant("sizes", np.array(sizes))], parts, name="split", axis=1))
    for part, size in zip(parts, sizes, strict=True):
        g.shapes[part] = (size, *g.shapes[x][1:])
    return parts


def _reshape(g: GraphBuilder, x: str, *target: int) -> str:
    name = f"target_{len(g.nodes)}"
    shape = [int(d) for d in target[1:]]
    if -1 in shape:
        known = int(np.prod([d for d in shape if d > 0]))
        shape[shape.index(-1)] = int(np.prod(g.shapes[x])) // known
    return g.node("Reshape", [x, g.constant(name, np.array(target))], shape)


def _nested_concat(g: GraphBuilder) -> str:
    a, b, c = g.conv("x", 6), g.conv("x", 4), g.conv("x", 5)
    return g.head(g.conv(g.concat(g.concat(b, a), c), 8))


def _residual_of_a_concat(g: GraphBuilder) -> str:
    """Two branches are added to one wide one: its halves are two groups."""
    joined = g.concat(g.conv("x", 6), g.conv("x", 4))
    return g.head(g.add(joined, g.conv("x", 10)))


def _crossed(g: GraphBuilder) -> str:
    """The same two branches, joined both ways round and added: every channel of one is a channel of the other."""
    a, b = g.conv("x", 4), g.conv("x", 4)
    return g.head(g.add(g.concat(a, b), g.concat(b, a)))


def _csp(g: GraphBuilder) -> str:
    """YOLO's C2f: a split half goes on, everything is joined again (Torch-Pruning #147)."""
    first, second = _split(g, g.conv("x", 8, 1), 4, 4)
    third = g.conv(second, 4)
    return g.head(g.conv(g.concat(first, second, third), 6, 1))


def _option_a(g: GraphBuilder) -> str:
    """A narrow stream, padded with zero channels, is added to a wide one."""
    narrow = g.conv("x", 4)
    padded = g.node("Pad", [narrow, g.constant("pads", np.array([0, 2, 0, 0, 0, 1, 0, 0]))], [7, 8, 8])
    return g.head(g.add(padded, g.conv(narrow, 7)))


def _padded_only(g: GraphBuilder) -> str:
    """Zero channels that no weight produces are not folded."""
    padded = g.node("Pad", [g.conv("x", 4), g.constant("pads", np.array([0, 0, 0, 0, 0, 3, 0, 0]))], [7, 8, 8])
    return g.head(padded)


def _shuffle(g: GraphBuilder) -> str:
    """ShuffleNet: grouped convolution, shuffle, depthwise convolution, grouped convolution (OTO #39)."""
    h = g.conv(g.conv("x", 6, 1), 6, 1, groups=2)
    h = _reshape(g, h, 0, 2, 3, 8, 8)
    h = _reshape(g, g.node("Transpose", [h], [3, 2, 8, 8], perm=[0, 2, 1, 3, 4]), 0, 6, 8, 8)
    return g.head(g.conv(g.conv(h, 6, groups=6), 6, 1, groups=2))


def _token(g: GraphBuilder) -> str:
    """A constant row is joined to the features: it has an entry per channel."""
    row = g.constant("row", g.normal(1, 6, 1, 8))
    stretched = g.node("Mul", [g.node("ReduceMean", ["x"], [1, 1, 1], axes=[1, 2, 3]), row], [6, 1, 8])
    return g.head(g.node("Concat", [g.conv("x", 6), stretched], [6, 9, 8], axis=2))


def _constant_operand(g: GraphBuilder) -> str:
    """A constant that is joined to the features on a side axis holds an entry per channel."""
    return g.head(g.node("Concat", [g.conv("x", 6), g.constant("row", g.normal(2, 6, 1, 8))], [6, 9, 8], axis=2))


def _tokens(g: GraphBuilder) -> str:
    flat = _reshape(g, g.conv("x", 6), 0, 6, -1)
    return g.matmul_add(g.node("Transpose", [flat], [64, 6], perm=[0, 2, 1]), 5)


GROUPS: dict[str, tuple[Body, list[str]]] = {
    "concat": (
        _nested_concat,
        [
            "conv_0 6: +conv_0_w.0 -conv_3_w.1 b:conv_0_b.0",
            "conv_1 4: +conv_1_w.0 -conv_3_w.1 b:conv_1_b.0",
            "conv_2 5: +conv_2_w.0 -conv_3_w.1 b:conv_2_b.0",
            "conv_3 8: +conv_3_w.0 -gemm_0_w.1 b:conv_3_b.0",
        ],
    ),
    "concat of a tensor with itself": (
        lambda g: g.head(g.conv(g.concat(*[g.conv("x", 6)] * 2), 8)),
        ["conv_0 6: +conv_0_w.0 -conv_1_w.1*2 b:conv_0_b.0", "conv_1 8: +conv_1_w.0 -gemm_0_w.1 b:conv_1_b.0"],
    ),
    "concat added to a wide stream": (
        _residual_of_a_concat,
        [
            "conv_0 6: +conv_0_w.0 +conv_2_w.0 -gemm_0_w.1 b:conv_0_b.0 b:conv_2_b.0",
            "conv_1 4: +conv_1_w.0 +conv_2_w.0 -gemm_0_w.1 b:conv_1_b.0 b:conv_2_b.0",
        ],
    ),
    "concat added crosswise": (_crossed, ["conv_0 4: +conv_0_w.0 +conv_1_w.0 -gemm_0_w.1*2 b:conv_0_b.0 b:conv_1_b.0"]),
    "split and join": (
        _csp,
        [
            "conv_0 4: +conv_0_w.0 -conv_2_w.1 b:conv_0_b.0",
            "conv_0#2 4: +conv_0_w.0 -conv_1_w.1 -conv_2_w.1 b:conv_0_b.0",
            "conv_1 4: +conv_1_w.0 -conv_2_w.1 b:conv_1_b.0",
            "conv_2 6: +conv_2_w.0 -gemm_0_w.1 b:conv_2_b.0",
        ],
    ),
    "zero-padded shortcut": (
        _option_a,
        [
            "conv_0 4: +conv_0_w.0 +conv_1_w.0 -conv_1_w.1 -gemm_0_w.1 b:conv_0_b.0 b:conv_1_b.0",
            "conv_1 3: +conv_1_w.0 -gemm_0_w.1 b:conv_1_b.0",
        ],
    ),
    "zero channels": (_padded_only, ["conv_0 4: +conv_0_w.0 -gemm_0_w.1 b:conv_0_b.0"]),
    "shuffle": (
        _shuffle,
        [
            "conv_0 6/2: +conv_0_w.0 -conv_1_w.1 b:conv_0_b.0",
            # Channels of conv_1's two blocks alternate, so conv_3's two blocks cut each of them in two, 2 + 1 of 3: the
            # two cells of two channels may shrink together.
            "conv_1 4/2: +conv_1_w.0 +conv_2_w.0 -conv_3_w.1 b:conv_1_b.0 b:conv_2_b.0",
            "conv_3 6/2: +conv_3_w.0 -gemm_0_w.1 b:conv_3_b.0",
        ],
    ),
    "flatten, H*W > 1": (
        lambda g: g.gemm(g.flatten(g.max_pool(g.conv("x", 6))), 5),
        ["conv_0 6: +conv_0_w.0 -gemm_0_w.1*16 b:conv_0_b.0"],
    ),
    "view, H*W > 1": (
        lambda g: g.gemm(_reshape(g, g.conv("x", 6), -1, 6 * 64), 5),
        ["conv_0 6: +conv_0_w.0 -gemm_0_w.1*64 b:conv_0_b.0"],
    ),
    "reshape to 3-D and on": (
        lambda g: g.head(g.matmul_add(_reshape(g, g.conv("x", 6), 0, 6, 64), 5)),
        ["conv_0 6: +conv_0_w.0 -gemm_0_w.1 b:conv_0_b.0"],
    ),
    "reshape to tokens": (
        lambda g: g.matmul_add(
            g.node("Transpose", [_reshape(g, g.conv("x", 6), 0, 6, -1)], [64, 6], perm=[0, 2, 1]), 5
        ),
        ["conv_0 6: +conv_0_w.0 -matmul_0_w.0 b:conv_0_b.0"],
    ),
    "view in front of a transposed convolution": (
        lambda g: g.conv_transpose(_reshape(g, g.gemm("x", 24), 0, 6, 2, 2), 3),
        ["gemm_0 6: +gemm_0_w.0*4 -convtranspose_0_w.0 b:gemm_0_b.0*4"],
    ),
    "gate": (
        lambda g: g.head(g.mul(g.conv("x", 6), g.sigmoid(g.conv(g.global_average_pool(g.conv("x", 4)), 6, 1)))),
        [
            "conv_0 6: +conv_0_w.0 +conv_2_w.0 -gemm_0_w.1 b:conv_0_b.0 b:conv_2_b.0",
            "conv_1 4: +conv_1_w.0 -conv_2_w.1 b:conv_1_b.0",
        ],
    ),
    "gate of one channel": (
        lambda g: g.head(g.node("Mul", [g.conv("x", 6), g.conv("x", 1)], [6, 8, 8])),
        ["conv_0 6: +conv_0_w.0 -gemm_0_w.1 b:conv_0_b.0"],
    ),
    "constant per channel": (_token, ["conv_0 6: +conv_0_w.0 -gemm_0_w.1 b:conv_0_b.0 p:row.1"]),
}


@pytest.mark.parametrize("name", GROUPS)
def test_groups(name: str) -> None:
    body, expected = GROUPS[name]
    assert groups(build(body, (7,) if name.startswith("view in front") else IMAGE)) == expected


def test_channels_whose_parts_come_in_another_order_are_another_group() -> None:
    """Position by position, the second filter of one channel would be merged with the first of the other."""
    model = RULE_MODELS["Gather-order"]()
    assert groups(model)[:2] == [
        "conv_0 3: +conv_0_w.0 +conv_1_w.0*2 -conv_2_w.1*2 b:conv_0_b.0 b:conv_1_b.0*2",
        "conv_0#2 3: +conv_0_w.0 +conv_1_w.0*2 -conv_2_w.1*2 b:conv_0_b.0 b:conv_1_b.0*2",
    ]


def test_constant_joined_to_the_features_is_a_parameter() -> None:
    model = build(_constant_operand)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 2
    assert groups(model) == ["conv_0 6: +conv_0_w.0 -gemm_0_w.1 b:conv_0_b.0 p:row.1"]


def _mean_of_parts(g: GraphBuilder, *shape: int) -> str:
    return g.gemm(g.node("ReduceMean", [_reshape(g, g.conv("x", 6), *shape)], [shape[1]], axes=[2], keepdims=0), 5)


NOT_WHOLE = "Reshape 'reshape_0': the reshape cuts this axis into parts that are not whole channels"
ONCE = "where a merged channel would count only once"

REFUSED: dict[str, tuple[Body, str]] = {
    "parts of channels and space": (lambda g: _mean_of_parts(g, -1, 4, 96), NOT_WHOLE),
    "half a channel each": (lambda g: _mean_of_parts(g, -1, 12, 32), NOT_WHOLE),
    "channels into the batch": (
        lambda g: g.gemm(_reshape(g, g.conv("x", 6), -1, 6), 5),
        "Reshape 'reshape_0': the sizes before and after it are not known to match; give them with --input-shapes",
    ),
    "sum": (
        lambda g: g.head(g.node("ReduceSum", [g.conv("x", 6), g.constant("axes", np.array([1]))], [1, 8, 8])),
        f"ReduceSum 'reducesum_0': it reduces over this axis, {ONCE}",
    ),
    "softmax": (
        lambda g: g.head(g.node("Softmax", [g.conv("x", 6)], [6, 8, 8], axis=1)),
        f"Softmax 'softmax_0': it normalises over this axis, {ONCE}",
    ),
    "neighbours": (
        lambda g: g.head(g.node("LRN", [g.conv("x", 6)], [6, 8, 8], size=3)),
        "LRN 'lrn_0': it divides every channel by the sum of squares of its neighbours",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    body, expected = REFUSED[name]
    model = build(body)
    assert reasons(model)["conv_0_w.0"] == expected
    assert not [line for line in groups(model) if "conv_0_w" in line]


@pytest.mark.parametrize(
    ("start", "index", "known"),
    [(0, 2, True), (0, -1, True), (1, -1, True), (1, 1, True), (-2, -1, True), (1, 0, False), (0, 1, False)],
)
@pytest.mark.parametrize("all_sizes", [False, True])
def test_a_width_that_is_read_as_a_number_stays(start: int, index: int, known: bool, all_sizes: bool) -> None:
    """As in 1 / sqrt(d): as a constant, or its channels do. The indices count from where the Shape starts."""
    g = GraphBuilder("net", 0, (4, 7))
    h = g.matmul_add("x", 12)
    sizes = g.node("Shape", [h], [], start=start)
    sizes = g.node("Cast", [sizes], [], to=6) if all_sizes else sizes  # nobody says which of these is read
    width = g.node("Gather", [sizes, g.constant("index", np.array(index))], [], axis=0)
    g.output(g.matmul_add(g.mul(h, g.node("Cast", [width], [], to=1)), 5))
    model = g.build()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[1].dim_param = "S"
    assert bool(groups(model)) is not all_sizes
    view = load(model)
    NORMALIZE(view)
    assert any(node.op_type == "Shape" for node in view.nodes) is (all_sizes or not known)
    if all_sizes:
        assert "its width is read as a number that the model computes with" in reasons(model)["matmul_0_w.1"]
