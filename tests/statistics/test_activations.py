"""A network run node by node: nodes that are alike share a session, and compute what they compute alone."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

import onnxfold
import onnxfold.statistics.activations as walks
from onnxfold.graph.files.load import load
from onnxfold.graph.run import node_runner
from onnxfold.graph.run.node_runner import NodeRunner, NodeSessions
from onnxfold.graph.view import GraphView
from onnxfold.statistics.activations import Activations
from testing.long_graphs import GRAPHS
from testing.models import chain_conv, random_input
from testing.quick import quick_fold

_CONV = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
_NODES = [
    helper.make_node("Conv", ["x", "w0", "b0"], ["c0"], **_CONV),
    helper.make_node("Relu", ["c0"], ["r0"]),
    helper.make_node("Conv", ["r0", "w1", "b1"], ["c1"], "named", **_CONV),
    helper.make_node("Conv", ["c1", "w1"], ["c2"], **_CONV),
    helper.make_node("Add", ["c2", "c2"], ["a0"]),
    helper.make_node("Add", ["a0", "c1"], ["a1"]),
    helper.make_node("Add", ["c0", "scale"], ["a2"]),
    helper.make_node("BatchNormalization", ["a1", "b0", "b1", "b1", "v"], ["n0"]),
    helper.make_node("BatchNormalization", ["a2", "b0", "b1", "b0", "v"], ["n1"], epsilon=0.1),
    helper.make_node("Clip", ["n0", "", "most"], ["k0"]),
    helper.make_node("Clip", ["n1", "most"], ["k1"]),
    helper.make_node("MatMul", ["k0", "m"], ["p0"]),
    helper.make_node("MatMul", ["k1", "m"], ["p1"]),
    helper.make_node("MatMul", ["p0", "p1"], ["p2"]),
    helper.make_node("Sub", ["p2", "scale"], ["s0"]),
    helper.make_node("Flatten", ["s0"], ["f0"]),
    helper.make_node("Flatten", ["s0"], ["f1"], axis=2),
    helper.make_node("Relu", ["f0"], ["r1"]),
    helper.make_node("TopK", ["f1", "k"], ["q", "t"]),
]


@pytest.fixture(scope="module")
def view() -> GraphView:
    random = np.random.default_rng(0)
    shapes = {"w0": (4, 4, 3, 3), "w1": (4, 4, 3, 3), "b0": 4, "b1": 4, "m": (6, 6), "scale": (1, 4, 1, 1), "most": ()}
    arrays = {name: random.standard_normal(shape) for name, shape in shapes.items()} | {"v": np.ones(4)}
    weights = [numpy_helper.from_array(np.asarray(v, np.float32), n) for n, v in arrays.items()]
    weights.append(numpy_helper.from_array(np.array([2]), "k"))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, 6, 6])
    y = helper.make_tensor_value_info("t", TensorProto.INT64, None)
    graph = helper.make_graph(_NODES, "g", [x], [y], weights)
    return load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


@pytest.mark.parametrize(("kept", "expected"), [(1, {"a2"}), (8, {"c1", "a2"})])
def test_nodes_that_share_a_session_compute_the_same(
    view: GraphView, kept: int, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shared is one that was opened for an earlier node, as long as it is kept."""
    monkeypatch.setattr(node_runner, "_KEPT", kept)
    inputs = [{"x": np.random.default_rng(i).standard_normal((2, 4, 6, 6)).astype(np.float32)} for i in range(2)]
    activations = Activations(view, inputs)
    shared = set()
    for node in view.nodes:
        before = activations.sessions.opened
        activations.run(node)
        if activations.sessions.opened == before:
            shared.update(node.output)
        for b in (0, 1):
            runner = NodeRunner(view, node)
            alone = _alone(runner, {n: activations.values[n][b] for n in runner.inputs})
            for name in filter(None, node.output):
                np.testing.assert_array_equal(activations.values[name][b], alone[name])
    assert shared == expected
    assert len(activations.sessions._kept) <= kept


def _alone(runner: NodeRunner, feeds: dict[str, Any]) -> dict[str, Any]:
    """Run a node with all of its weights inside its model."""
    runner._constants = [*runner._constants, *runner._fed]
    runner._fed, runner._shares = {}, False
    return runner.run(feeds)


def _draws(seeds: tuple[float | None, float | None]) -> list[NodeProto]:
    given = [{} if seed is None else {"seed": seed} for seed in seeds]
    return [helper.make_node("RandomNormalLike", ["x"], [f"y{i}"], **g) for i, g in enumerate(given)]


def test_nodes_with_a_seed_draw_the_same_numbers() -> None:
    """In one session the second one would go on where the first one stopped."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [8])
    graph = helper.make_graph(_draws((1.0, 1.0)), "g", [x], [helper.make_empty_tensor_value_info("y1")])
    drawn = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    activations = Activations(drawn, [{"x": np.zeros(8, np.float32)}])
    for node in drawn.nodes:
        activations.run(node)
    np.testing.assert_array_equal(activations.values["y0"][0], activations.values["y1"][0])


@pytest.mark.parametrize("graph", ["conv", "fan"])
def test_deep_networks_open_no_more_sessions(graph: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening them took most of the time of a fold of many nodes."""
    opened = count()
    own = NodeSessions.own
    monkeypatch.setattr(NodeSessions, "own", lambda *a, **k: (next(opened), own(*a, **k))[1])
    seen = []
    for nodes in (20, 60):
        model = GRAPHS[graph](nodes)
        before = next(opened)
        onnxfold.fold(model, 0.25, inputs="dead-leaves", samples=4, verify=False)
        seen.append(next(opened) - before)
    assert seen[0] == seen[1] < 40


@pytest.mark.parametrize("has_disk", [True, False])
def test_what_many_samples_take_waits_on_disk(has_disk: bool, view: GraphView, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    inputs = [{"x": random.standard_normal((2, 4, 6, 6)).astype(np.float32)} for _ in range(8)]
    nbytes, plain = inputs[0]["x"].nbytes, _values(view, inputs)[0]
    monkeypatch.setattr(walks, "_HELD_BYTES", 3 * nbytes)
    monkeypatch.setattr(walks, "_LEAST_BYTES", 1)
    if not has_disk:
        monkeypatch.setattr("tempfile.TemporaryFile", _refuse)
    view.spill.close()
    values, most = _values(view, inputs)
    assert values.keys() == plain.keys()
    for name in plain:
        np.testing.assert_array_equal(values[name], plain[name])
    assert (most <= 3 * nbytes) == has_disk


@pytest.mark.parametrize("held_bytes", [0, 1 << 30])
@pytest.mark.parametrize("count", [1, 2])
def test_more_batches_begin_where_the_first_ones_are(
    count: int, held_bytes: int, view: GraphView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the first ones wait on disk."""
    monkeypatch.setattr(walks, "_HELD_BYTES", held_bytes)
    monkeypatch.setattr(walks, "_LEAST_BYTES", 1)
    x = np.random.default_rng(0).standard_normal((6, 4, 6, 6)).astype(np.float32)
    walk = Activations(view, [{"x": x[:4]}, {"x": x[4:]}])
    for done, node in enumerate(walk.walk()):
        if done == 2:
            walk.fork(count)
        walk.run(node)
        for name in node.output:
            first, second, *more = walk.values[name]
            assert (len(first), len(more)) == (2 * len(second), count * (done >= 2))
            for values, original in zip(more, (first, second), strict=False):
                np.testing.assert_array_equal(values, original)


@pytest.mark.parametrize("bn", [True, False])
def test_a_fold_with_activations_on_disk_is_the_same(bn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = chain_conv(0, bn=bn)
    x = random_input(model, 0, batch=130)
    plain = quick_fold(model, 0.4, calibration=x).model.SerializeToString()
    monkeypatch.setattr(walks, "_HELD_BYTES", 0)
    monkeypatch.setattr(walks, "_LEAST_BYTES", 1)
    assert quick_fold(model, 0.4, calibration=x).model.SerializeToString() == plain


def _refuse(**options: Any) -> None:
    raise OSError(28, "no space left on device")


def _values(view: GraphView, inputs: list[dict[str, Any]]) -> tuple[dict[str, Any], int]:
    """Return every result of a walk, and the most bytes that were held of them."""
    walk, results, most = Activations(view, inputs), {}, 0
    for node in walk.walk():
        walk.run(node)
        results |= {name: np.concatenate(list(walk.values[name])) for name in node.output}
        most = max(most, sum(getattr(batches, "held_bytes", 0) for batches in walk.values.values()))
    return results, most
