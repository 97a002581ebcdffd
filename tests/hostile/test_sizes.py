"""What a small file asks for is counted before it is allocated; a size that cannot be had is refused in one line."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onnxfold
from onnxfold.errors import ModelLoadError
from onnxfold.machine.memory import memory_limit
from tests.hostile.conftest import Command
from tests.hostile.sizes import HUGE, network, numbers, weight


@pytest.mark.parametrize("case", HUGE)
def test_sizes_are_counted_before_they_are_allocated(case: str, tmp_path: Path, command: Command) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(HUGE[case], str(path))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    done = command("inspect", path)
    assert done.code == 0, done.err
    limit = ("--max-memory", "1G")
    for arguments in (
        ("fold", path, tmp_path / "o.onnx", "--inputs", "noise", "--samples", 2, *limit),
        ("compare", path, path, *limit),
        ("export", path, tmp_path / "o.tflite", *limit),
    ):
        done = command(*arguments)
        assert done.code in (0, 1), (arguments, done.err)
        if done.code:
            done.line()
    assert time.process_time() - start < 20.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20, "more than 1 GB"


@pytest.mark.parametrize("case", ["input", "input of a free batch", "input beyond 64 bits", "batch"])
def test_an_input_that_cannot_be_had_is_named(case: str, tmp_path: Path, command: Command) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(HUGE[case], str(path))
    for arguments in (
        ("fold", path, tmp_path / "o.onnx", "--inputs", "noise", "--no-verify"),
        ("compare", path, path),
    ):
        done = command(*arguments, "--max-memory", "1G")
        assert done.code == 1
        assert "input 'x'" in done.line() or "needs" in done.line()
    assert not (tmp_path / "o.onnx").exists()


def test_axes_of_pictures_are_analysed_quickly() -> None:
    start = time.process_time()
    groups = onnxfold.inspect(network(size=(1, 3, 1 << 20, 1 << 20)))
    assert [group.size for group in groups] == [8]
    assert time.process_time() - start < 5.0
    with memory_limit("1M"), pytest.raises(onnxfold.errors.MemoryLimitError, match="positions"):  # type: ignore[attr-defined]
        onnxfold.inspect(network(size=(1, 3, 1 << 20, 1 << 20)))


def _with_weight(**fields: object) -> onnx.ModelProto:
    model = network()
    for name, value in fields.items():
        if name == "dims":
            model.graph.initializer[0].dims[:] = value  # type: ignore[call-overload]
        else:
            setattr(model.graph.initializer[0], name, value)
    return model


BROKEN = {
    "negative": _with_weight(dims=[8, -3, 3, 3]),
    "two negative": _with_weight(dims=[-8, -3, 3, 3]),
    "beyond 64 bits": _with_weight(dims=[2**62, 2**62, 4, 4]),
    "wraps to 0": _with_weight(dims=[2**32, 2**32, 1, 1], raw_data=b""),
    "empty but impossible": _with_weight(dims=[0, 2**62, 2**62, 3], raw_data=b""),
    "too short": _with_weight(raw_data=b"1234"),
    "too long": _with_weight(raw_data=bytes(8 * 27 * 4 + 4)),
    "unknown type": _with_weight(data_type=99),
    "no type": _with_weight(data_type=0),
}


@pytest.mark.parametrize("case", BROKEN)
def test_weights_that_do_not_hold_what_they_say(case: str) -> None:
    with pytest.raises(ModelLoadError, match="does not match its shape"):
        onnxfold.inspect(BROKEN[case])


@pytest.mark.parametrize("where", ["constant", "body"])
def test_so_do_tensors_inside_of_nodes(where: str) -> None:
    bad = weight("bad", 2, 2)
    bad.dims[:] = [2**40, 2**40]
    constant = helper.make_node("Constant", [], ["k"], "const", value=bad)
    if where == "body":
        out = helper.make_tensor_value_info("k", TensorProto.FLOAT, None)
        body = helper.make_graph([constant], "body", [], [out])
        constant = helper.make_node("If", ["yes"], ["k"], "const", then_branch=body, else_branch=body)
    model = network(constant, constants=(onnx.numpy_helper.from_array(np.array(True), "yes"), numbers("n", 1)))
    with pytest.raises(ModelLoadError, match="const"):
        onnxfold.inspect(model)
