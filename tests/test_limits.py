"""Files that would take all memory, or never end: each is refused in one line, before anything is allocated."""

import os
from itertools import pairwise
from pathlib import Path

import onnx
import pytest
from onnx import helper

import onnxfold
from onnxfold import memory
from onnxfold.errors import MemoryLimitError, ModelNotFoundError
from onnxfold.graph.inlining import inlined, require_inlinable
from tests.models import mlp


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "pipe.onnx"
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("function", [onnxfold.inspect, onnxfold.fold])
def test_a_fifo_is_refused_at_once(fifo: Path, function: object) -> None:
    with pytest.raises(ModelNotFoundError, match="is a FIFO, a device or a socket"):
        function(fifo)  # type: ignore[operator]


def test_compare_refuses_a_fifo_at_once(fifo: Path, tmp_path: Path) -> None:
    onnx.save(mlp(0), tmp_path / "a.onnx")
    for pair in ((fifo, tmp_path / "a.onnx"), (tmp_path / "a.onnx", fifo)):
        with pytest.raises(ModelNotFoundError, match="is a FIFO"):
            onnxfold.compare(*pair)


def nested_functions(depth: int, *, calls: int = 2) -> onnx.ModelProto:
    """Return an MLP behind functions each of which calls the one below twice."""
    model = mlp(0)
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    relu = helper.make_node("Relu", ["a"], ["b"])
    model.functions.append(helper.make_function("local", "f0", ["a"], ["b"], [relu], opset))
    for i in range(1, depth):
        names = ["a", *(f"m{k}" for k in range(calls - 1)), "b"]
        nodes = [helper.make_node(f"f{i - 1}", [x], [y], domain="local") for x, y in pairwise(names)]
        model.functions.append(helper.make_function("local", f"f{i}", ["a"], ["b"], nodes, opset))
    model.opset_import.append(helper.make_opsetid("local", 1))
    call = helper.make_node(f"f{depth - 1}", ["x"], ["x_called"], domain="local")
    for node in model.graph.node:
        node.input[:] = ["x_called" if name == "x" else name for name in node.input]
    model.graph.node.insert(0, call)
    return model


@pytest.mark.parametrize("function", [onnxfold.inspect, onnxfold.fold, lambda m: onnxfold.compare(m, m)])
def test_nested_functions_are_counted_before_they_are_written_out(function: object) -> None:
    with pytest.raises(MemoryLimitError, match=r"written out, are [\d,]+ nodes"):
        function(nested_functions(60))  # type: ignore[operator]


def test_functions_of_a_bearable_size_are_written_out() -> None:
    model = nested_functions(6)
    before = sum(node.op_type == "Relu" for node in model.graph.node)
    written = inlined(model)
    assert sum(node.op_type == "Relu" for node in written.graph.node) == before + 2**5
    with memory.limited_to("64K"), pytest.raises(MemoryLimitError, match="functions written out"):
        inlined(model)


def test_a_long_chain_of_functions_is_no_recursion() -> None:
    require_inlinable(nested_functions(3000, calls=1))
