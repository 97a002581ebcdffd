"""Loops that never end: what runs them has a time limit."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfold.errors import EndlessRunError
from onnxfold.graph.files.load import load
from onnxfold.graph.run import loops
from onnxfold.graph.run.loops import open_loop
from onnxfold.graph.run.node_runner import NodeRunner
from onnxfold.graph.run.session import Session
from tests.hostile.conftest import Command
from tests.hostile.sizes import network, scalar

X = np.ones((1, 3, 8, 8), np.float32)
YES, NO = (numpy_helper.from_array(np.array(value), name) for name, value in (("yes", True), ("no", False)))
_CONSTANTS = (YES, NO, scalar("five", 5), scalar("most", 2**63 - 1), numpy_helper.from_array(np.float32(-1), "below"))
node = helper.make_node
#: What the body makes of its condition.
_NEXT = {
    "kept": [],
    "passed on": [node("Identity", ["more"], ["next"])],
    "constant": [node("Constant", [], ["yes_inside"], value=YES), node("Identity", ["yes_inside"], ["next"])],
    "captured": [node("Identity", ["yes"], ["next"])],
    "computed": [node("ReduceMax", ["v"], ["top"], keepdims=0), node("Greater", ["top", "below"], ["next"])],
    "false": [node("Identity", ["no"], ["next"])],
}


def _loop(turn: str, count: str = "", start: str = "yes") -> onnx.NodeProto:
    inputs = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("more", TensorProto.BOOL, []),
        helper.make_tensor_value_info("v", TensorProto.FLOAT, None),
    ]
    outputs = [
        helper.make_tensor_value_info("next" if _NEXT[turn] else "more", TensorProto.BOOL, []),
        helper.make_tensor_value_info("v_out", TensorProto.FLOAT, None),
    ]
    nodes = [*_NEXT[turn], node("Relu", ["v"], ["v_out"])]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    return node("Loop", [count, start, "x"], ["t"], "again", body=body)


def _model(turn: str, count: str = "", start: str = "yes") -> onnx.ModelProto:
    """Return two convolutions, and a Loop beside them."""
    model = network(_loop(turn, count, start), constants=_CONSTANTS)
    model.graph.output.append(helper.make_tensor_value_info("t", TensorProto.FLOAT, [None] * 4))
    return model


@pytest.mark.parametrize("start", ["yes", ""])
@pytest.mark.parametrize("count", ["", "most"])
@pytest.mark.parametrize("turn", ["kept", "passed on", "constant", "captured"])
def test_a_loop_that_never_ends_is_ended(turn: str, count: str, start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "MOST_SECONDS", 0.2)
    model = _model(turn, count, start)
    assert open_loop(load(model)) == "again"
    with pytest.raises(EndlessRunError, match=r"ended after 0\.2 s: Loop 'again' has no trip count"):
        Session(model).run({"x": X})


@pytest.mark.parametrize(
    ("turn", "count", "start"),
    [("kept", "five", "yes"), ("captured", "five", ""), ("kept", "", "no"), ("false", "", "yes"), ("false", "", "")],
)
def test_a_loop_that_ends_is_run(turn: str, count: str, start: str) -> None:
    view = load(_model(turn, count, start))
    assert (open_loop(view) is None) == (count == "five")
    assert NodeRunner(view, view.nodes[0]).run({"x": X})["t"].shape == X.shape


def test_a_loop_in_a_branch_may_never_be_reached() -> None:
    out = helper.make_tensor_value_info("t", TensorProto.FLOAT, None)
    endless = helper.make_graph([_loop("kept")], "then", [], [out])
    other = helper.make_graph([node("Relu", ["x"], ["t"])], "else", [], [out])
    branch = node("If", ["no"], ["u"], "if", then_branch=endless, else_branch=other)
    model = network(branch, image="u", constants=_CONSTANTS)
    view = load(model)
    assert open_loop(view) == "again"
    assert NodeRunner(view, view.nodes[0]).run({"x": X})["u"].shape == X.shape


def test_a_condition_that_stays_true_is_ended_by_the_clock(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: Command
) -> None:
    monkeypatch.setattr(loops, "MOST_SECONDS", 0.2)
    path, out = tmp_path / "m.onnx", tmp_path / "o.onnx"
    onnx.save(_model("computed"), str(path))
    start = time.monotonic()
    view, words = load(path), r"ended after 0\.2 s: Loop 'again' has no trip count"
    with pytest.raises(EndlessRunError, match=words):
        Session(path).run({"x": X})
    with pytest.raises(EndlessRunError, match=words):
        NodeRunner(view, view.nodes[0]).run({"x": X})
    done = command("fold", path, out, "--inputs", "noise", "--samples", 2)
    assert done.code == 0, done.err
    said = " ".join(done.out.split())
    assert "cannot be run on generated inputs, so it was repaired from its weights: a run was ended" in said
    assert "fidelity was not measured: the original does not run: a run was ended after" in said
    assert time.monotonic() - start < 20.0


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell a process that its parent ended")
@pytest.mark.parametrize("when", ["before it starts", "as it runs"])
def test_a_trial_run_ends_with_its_parent(when: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(_model("computed"), str(path))
    code = (
        "import numpy, sys\n"
        "from onnxfold.graph.files.load import load\n"
        "from onnxfold.graph.run.session import require_trial_run\n"
        "require_trial_run(load(sys.argv[1]), [{'x': numpy.ones((1, 3, 8, 8), numpy.float32)}], 'it')\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, path])

    def children() -> list[int]:
        listed = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text()
        return [pid for pid in map(int, listed.split()) if when == "before it starts" or _has_started(pid)]

    try:
        # Its first instant is a few milliseconds long.
        running = _until(children, seconds_between=0.0)
    finally:
        parent.kill()
        parent.wait()
    assert running
    assert _until(lambda: not any(_is_running(pid) for pid in running))


def _until(holds: Callable[[], Any], seconds_between: float = 0.05) -> Any:
    """Return the value of a condition when it holds, or after a while."""
    end = time.monotonic() + 60.0
    while not (value := holds()) and time.monotonic() < end:
        time.sleep(seconds_between)
    return value


def _has_started(pid: int) -> bool:
    """Whether a child has its own program, no longer a copy of its parent's, and this has loaded onnxruntime."""
    try:
        own = b"prctl" in Path(f"/proc/{pid}/cmdline").read_bytes()
        return own and "onnxruntime" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_commands_tell_it_in_one_line(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "MOST_SECONDS", 0.2)
    path = tmp_path / "m.onnx"
    onnx.save(_model("kept"), str(path))
    done = command("compare", path, path)
    assert done.code == 1
    assert "Loop 'again' has no trip count" in done.line()
