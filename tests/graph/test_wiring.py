"""How nodes hang together: what is refused on loading with which reason, and what is sorted."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

import onnxfold
from onnxfold.cli import cli
from onnxfold.errors import ModelLoadError
from onnxfold.graph.files.load import load
from onnxfold.graph.run.session import Session
from testing import models
from testing.quick import quick_fold

OPSETS = (helper.make_opsetid("", 17), helper.make_opsetid("local", 1))


def relu(x: str, y: str, name: str = "") -> NodeProto:
    return helper.make_node("Relu", [x], [y], name)


def add(a: str, b: str, y: str, name: str = "") -> NodeProto:
    return helper.make_node("Add", [a, b], [y], name)


def values(name: str, shape: Sequence[int] = (1, 4)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def model(*nodes: NodeProto, outputs: Sequence[str] = ("y",), weights: Sequence[TensorProto] = ()) -> ModelProto:
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    graph = helper.make_graph(nodes, "g", [values("x"), condition], [values(o) for o in outputs], initializer=weights)
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=8)


def body(*nodes: NodeProto, out: str) -> GraphProto:
    return helper.make_graph(nodes, "body", [], [values(out)])


def branch(then: GraphProto, y: str = "y") -> NodeProto:
    return helper.make_node("If", ["c"], [y], "if", then_branch=then, else_branch=body(relu("x", "other"), out="other"))


def function(*nodes: NodeProto) -> ModelProto:
    made = model(helper.make_node("f", ["x"], ["y"], domain="local"))
    made.functions.append(helper.make_function("local", "f", ["x"], ["y"], nodes, OPSETS))
    return made


def conv(**attributes: object) -> ModelProto:
    weight = numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], "conv", **attributes)],
        "g", [values("x", (1, 3, 16, 16))], [values("y", (1, 4, 10, 10))], [weight],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=OPSETS[:1])


BROKEN: dict[str, tuple[ModelProto, str]] = {
    "cycle": (model(add("x", "b", "a", "one"), relu("a", "b", "two"), relu("b", "y")), "a cycle: .*'one'.*'two'|'two'"),
    "cycle that no output needs": (model(relu("x", "y"), add("x", "b", "a"), relu("a", "b")), "a cycle"),
    "self": (model(add("x", "y", "y", "me")), "node 'me' .* reads its own output"),
    "cycle through a body": (model(branch(body(relu("y", "t"), out="t"))), "node 'if' .* reads its own output"),
    "dangling": (model(add("x", "nowhere", "y", "sum")), "node 'sum' .* reads 'nowhere'"),
    "dangling in a body": (model(branch(body(relu("nowhere", "t", "in"), out="t"))), "node 'in' .* reads 'nowhere'"),
    "dangling in a function": (function(add("x", "nowhere", "y")), "reads 'nowhere'"),
    "written twice": (model(relu("x", "y", "one"), relu("x", "y", "two")), "'two' .* writes 'y', which node 'one'"),
    "written twice in a body": (model(branch(body(relu("x", "t"), relu("x", "t"), out="t"))), "writes 't'"),
    "writes an input": (model(relu("x", "x"), relu("x", "y")), "writes 'x', which is an input or a weight too"),
    "hides": (model(relu("x", "a"), branch(body(relu("x", "a"), out="a"))), "which a graph around it has already"),
    "two names": (model(relu("x", "a", "n"), relu("a", "y", "n")), "two nodes are called 'n'"),
    "two names in a body": (
        model(branch(body(relu("x", "s", "n"), relu("s", "t", "n"), out="t"))), "two nodes are called 'n'"
    ),
    "no such output": (model(relu("x", "y"), outputs=("y", "nowhere")), "output 'nowhere'"),
    "function calls itself": (function(helper.make_node("f", ["x"], ["y"], domain="local")), "'f' calls itself"),
    "kernel": (conv(kernel_shape=[7, 7]), "kernel_shape 7x7, but its weight 'w' is 4x3x3x3"),
    "groups": (conv(group=3), "3 groups, but its weight 'w'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_refused_with_the_reason(name: str) -> None:
    broken, reason = BROKEN[name]
    with pytest.raises(ModelLoadError, match=reason):
        onnxfold.inspect(broken)
    if name == "function calls itself":  # onnxruntime dies of it
        return
    with pytest.raises(Exception, match=r"onnxruntime|Invalid"):  # it is not refused for nothing
        Session(broken).run({i.name: np.ones([int(d or 1) for d in i.shape], i.dtype) for i in Session(broken).inputs})


COMMANDS: dict[str, Callable[[str, str], list[str]]] = {
    "fold": lambda a, b: ["fold", a, b],
    "inspect": lambda a, b: ["inspect", a],
    "compare": lambda a, b: ["compare", a, a],
    "export": lambda a, b: ["export", a, b],
    "bench": lambda a, b: ["bench", a, "--device", "host"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses(command: str, tmp_path: Path) -> None:
    broken, _ = BROKEN["cycle"]
    path = tmp_path / "in.onnx"
    onnx.save(broken, str(path))
    done = CliRunner().invoke(cli, COMMANDS[command](str(path), str(tmp_path / "out.tflite")))
    assert isinstance(done.exception, ModelLoadError)
    assert "is broken: a cycle" in str(done.exception)
    assert [p.name for p in tmp_path.iterdir()] == ["in.onnx"]


def test_names_may_repeat_where_that_means_nothing() -> None:
    """As onnxruntime takes it: unnamed nodes, nodes of other graphs, both branches, an output that is listed twice."""
    fine = model(
        relu("x", "a", "n"), relu("a", "b"), relu("b", "y"),
        branch(body(relu("a", "other", "n"), out="other"), "z"),
        outputs=("y", "y", "z"),
    )  # fmt: skip
    assert load(fine).notes == []
    Session(fine)


@pytest.mark.parametrize("seed", range(3))
def test_unsorted_nodes_are_sorted_with_a_note(seed: int) -> None:
    sorted_model = models.residual(seed)
    shuffled = ModelProto()
    shuffled.CopyFrom(sorted_model)
    nodes = list(sorted_model.graph.node)
    random.Random(seed).shuffle(nodes)
    del shuffled.graph.node[:]
    shuffled.graph.node.extend(nodes)
    before = shuffled.SerializeToString()

    result = quick_fold(shuffled, 0.4, method="fold-ar", allocation="uniform")
    onnx.checker.check_model(result.model, full_check=True)
    assert any("the nodes were sorted" in note for note in result.report.notes)
    assert any("the nodes were sorted" in note for note in onnxfold.api.inspect_model(shuffled).notes)
    assert shuffled.SerializeToString() == before
    x = models.random_input(sorted_model, 0)
    np.testing.assert_array_equal(
        models.run(result.model, x)[0],
        models.run(quick_fold(sorted_model, 0.4, method="fold-ar", allocation="uniform").model, x)[0],
    )


def test_bodies_and_functions_are_sorted() -> None:
    """onnxruntime does not load a body whose nodes are not sorted."""
    inner = model(branch(body(relu("s", "t"), relu("x", "s"), out="t")))
    with pytest.raises(Exception, match="onnxruntime"):
        Session(inner)
    view = load(inner)
    assert [n.output[0] for n in view.nodes[0].attribute[1].g.node] in (["s", "t"], ["other"])
    Session(view)
    called = load(function(relu("a", "y"), relu("x", "a")))
    assert [n.output[0] for n in called.model.functions[0].node] == ["a", "y"]
    assert view.notes
    assert called.notes


def test_a_body_may_read_what_stands_behind_it() -> None:
    view = load(model(branch(body(relu("a", "t"), out="t")), relu("x", "a")))
    assert [n.output[0] for n in view.nodes] == ["a", "y"]


def test_loading_grows_linearly() -> None:
    def seconds(count: int) -> float:
        nodes = [relu(f"t{i}", f"t{i + 1}", f"n{i}") for i in range(count)]
        random.Random(0).shuffle(nodes)
        graph = helper.make_graph(nodes, "g", [values("t0")], [values(f"t{count}")])
        chain = helper.make_model(graph, opset_imports=OPSETS)
        start = time.process_time()
        load(chain)
        return time.process_time() - start

    small = min(seconds(500) for _ in range(3))
    assert seconds(10_000) < 20 * 4 * small  # quadratic: 400 times
