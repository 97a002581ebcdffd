"""Random graphs: any fold of any of them is a valid model, and duplicated channels are lossless."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfold
import onnxfold.errors
from testing.quick import quick_fold
from testing.random_graphs.check import Outcome, check
from testing.random_graphs.common import Array
from testing.random_graphs.focus import EXERCISED
from testing.random_graphs.generate import random_graph
from testing.random_graphs.run import draw_feeds, run

SEEDS = range(300)
#: `make fuzz` folds the others.
FOLDED = SEEDS[:100]
CHUNK = 25


#: The chunks take six seconds each.
CHUNKS = [pytest.param(first, marks=[pytest.mark.long] if first >= CHUNK else []) for first in FOLDED[::CHUNK]]


@pytest.mark.parametrize("first", CHUNKS)
def test_random_graphs(first: int) -> None:
    outcomes = [check(seed) for seed in range(first, first + CHUNK)]
    assert not {o.seed: o.failures for o in outcomes if o.failures}
    # Over all seeds it is at least 80 %; no chunk is far from that.
    assert sum(o.folded for o in outcomes) >= 0.6 * CHUNK


@pytest.mark.long
def test_every_rule_is_exercised_and_most_graphs_fold() -> None:
    seen: set[tuple[str, str, int]] = set()
    foldable = 0
    for seed in SEEDS:
        model = random_graph(seed)
        seen |= Outcome.of(seed, model).rules
        foldable += bool(onnxfold.inspect(model))
    assert not {(domain, rule.op_type, rule.since) for domain, rule in EXERCISED} - seen
    assert foldable >= 0.8 * len(SEEDS)


def test_the_same_seed_gives_the_same_graph() -> None:
    for seed in range(0, 300, 50):
        assert random_graph(seed).SerializeToString() == random_graph(seed).SerializeToString()


# -- what random graphs have found -------------------------------------------------------------


def _model(
    nodes: list[onnx.NodeProto], inputs: dict[str, list[int]], constants: dict[str, Array], opset: int = 17
) -> onnx.ModelProto:
    domains = {n.domain for n in nodes} - {""}
    graph = helper.make_graph(
        nodes,
        "found",
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, v) for k, v in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _doubled(rng: np.random.Generator, rows: int, *rest: int) -> Array:
    """Rows that exist twice, the copies behind the originals."""
    values = rng.standard_normal((rows, *rest)).astype(np.float32)
    return np.concatenate([values, values])


def _assert_lossless(model: onnx.ModelProto, method: str) -> onnx.ModelProto:
    folded = quick_fold(model, channel_ratio=0.5, method=method).model
    feeds = draw_feeds(model, 0)
    for a, b in zip(run(model, feeds)[0], run(folded, feeds)[0], strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)
    return folded


@pytest.mark.parametrize("method", ["fold-ar", "fold-naive"])
def test_negative_indices_follow_the_end(method: str) -> None:
    """Gather counted from an end that the fold moves."""
    rng = np.random.default_rng(0)
    model = _model(
        [
            helper.make_node("Conv", ["x", "w"], ["h"]),
            helper.make_node("Gather", ["h", "chosen"], ["g"], axis=1),
            helper.make_node("Conv", ["g", "v"], ["y"]),
        ],
        {"x": [2, 3, 4, 4]},
        {
            "w": _doubled(rng, 4, 3, 1, 1),
            "chosen": np.array([-8, 1, -6, 7, -4, 5, -2, -1], np.int64),
            "v": rng.standard_normal((2, 8, 1, 1)).astype(np.float32),
        },
    )
    _assert_lossless(model, method)


def test_gemm_keeps_its_bias_where_it_must_have_one() -> None:
    rng = np.random.default_rng(0)
    weights = {"w": _doubled(rng, 4, 3), "v": rng.standard_normal((2, 8)).astype(np.float32)}
    model = _model(
        [
            helper.make_node("Gemm", ["x", "w", "zero"], ["h"], transB=1),
            helper.make_node("Gemm", ["h", "v", "nothing"], ["y"], transB=1),
        ],
        {"x": [2, 3]},
        {**weights, "zero": np.zeros(8, np.float32), "nothing": np.zeros(2, np.float32)},
        opset=9,
    )
    assert [len(node.input) for node in _assert_lossless(model, "fold-ar").graph.node] == [3, 3]


def test_a_zero_in_a_target_shape_copies_another_axis() -> None:
    """The 0 copies axis 2 of the input, where the result has its axis 3, whose channels are folded."""
    rng = np.random.default_rng(0)
    model = _model(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Reshape", ["h", "target"], ["r"]),
            helper.make_node("MatMul", ["r", "v"], ["y"]),
        ],
        {"x": [2, 2, 4, 3]},
        {
            "w": np.ascontiguousarray(_doubled(rng, 2, 3).T),
            "target": np.array([0, 8, 0], np.int64),
            "v": rng.standard_normal((4, 5)).astype(np.float32),
        },
    )
    _assert_lossless(model, "fold-ar")


def _square(rng: np.random.Generator) -> list[onnx.NodeProto]:
    return [helper.make_node("MatMul", ["h", "h"], ["s"])]


def _fused(rng: np.random.Generator) -> list[onnx.NodeProto]:
    inputs = ["h", "kernel", "bias", "h"]
    return [helper.make_node("FusedConv", inputs, ["s"], domain="com.microsoft", activation="Relu", pads=[1] * 4)]


def _contracted(rng: np.random.Generator) -> list[onnx.NodeProto]:
    return [helper.make_node("Einsum", ["h", "h"], ["s"], equation="nchw,ncwv->nchv")]


@pytest.mark.parametrize("middle", [_square, _fused, _contracted])
def test_one_tensor_in_two_roles(middle) -> None:
    """An operand that passes an axis through does not speak for the other operand, which sums over it."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        *middle(rng),
        helper.make_node("MatMul", ["s", "v"], ["y"]),
    ]
    constants = {
        "w": np.ascontiguousarray(_doubled(rng, 4, 3).T),
        "v": rng.standard_normal((8, 5)).astype(np.float32),
    }
    if middle is _fused:
        constants["kernel"] = rng.standard_normal((2, 2, 3, 3)).astype(np.float32)
        constants["bias"] = rng.standard_normal(2).astype(np.float32)
    model = _model(nodes, {"x": [2, 2, 8, 3]}, constants)
    try:
        folded = quick_fold(model, channel_ratio=0.5).model
    except onnxfold.errors.NothingToFoldError:
        return
    feeds = draw_feeds(model, 0)
    for a, b in zip(run(model, feeds)[0], run(folded, feeds)[0], strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4)


def test_two_folded_axes_of_one_activation() -> None:
    """A consumer is refitted on samples that both networks have, where another axis of its input is folded, too."""
    rng = np.random.default_rng(0)
    model = _model(
        [
            helper.make_node("Conv", ["x", "w"], ["a"]),
            helper.make_node("MatMul", ["a", "v"], ["b"]),
            helper.make_node("MatMul", ["b", "u"], ["c"]),
            helper.make_node("Conv", ["c", "z"], ["y"]),
        ],
        {"x": [2, 3, 4]},
        {
            name: rng.standard_normal(shape).astype(np.float32)
            for name, shape in {"w": (8, 3, 1), "v": (4, 8), "z": (5, 8, 1), "u": (8, 6)}.items()
        },
    )
    errors = []
    for repair in ("none", "least-squares"):
        result = quick_fold(model, channel_ratio=0.5, repair=repair)
        assert [(g.width, g.folded_width) for g in result.report.groups] == [(8, 4), (8, 4)]
        assert result.report.fidelity is not None
        errors.append(result.report.fidelity.outputs[0].relative_error)
    # Eight channels have three dimensions on one axis, four on the other: four channels say it all.
    assert errors[1] < 0.1 < errors[0]
