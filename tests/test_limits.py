"""Files that would take all memory, or never end: each is refused in one line, before anything is allocated."""

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from onnxfold.errors import MemoryLimitError, ModelNotFoundError
from onnxfold.graph.files.load import load
from onnxfold.graph.files.well_formed import require_inlinable
from onnxfold.graph.run.session import InputInfo, Session
from onnxfold.graph.shapes.footprint import Footprint
from onnxfold.inputs.images.synthetic import noise_inputs, synthetic_inputs
from onnxfold.machine import memory
from onnxfold.passes.normalize.constants import InlineFunctions
from testing.models import mlp


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
    view = load(model)
    InlineFunctions()(view)
    assert sum(node.op_type == "Relu" for node in view.nodes) == before + 2**5
    with memory.memory_limit("64K"), pytest.raises(MemoryLimitError, match="functions written out"):
        load(model)


def test_a_long_chain_of_functions_is_no_recursion() -> None:
    require_inlinable(nested_functions(3000, calls=1))


def oversized(op_type: str, count: int) -> onnx.ModelProto:
    """Return an MLP that adds the sum of a computed tensor of `count` elements to its input."""
    inputs = {
        "ConstantOfShape": [np.array([count])],
        "Tile": [np.ones(4, np.float32), np.array([count // 4])],
        "Expand": [np.ones(1, np.float32), np.array([count])],
        "Range": [np.float32(0), np.float32(count), np.float32(1)],
        "Pad": [np.ones(1, np.float32), np.array([0, count])],
    }[op_type]
    model = mlp(0)
    names = [f"big_{i}" for i in range(len(inputs))]
    for name, values in zip(names, inputs, strict=True):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(values), name))
    for node in model.graph.node:
        node.input[:] = ["x_moved" if name == "x" else name for name in node.input]
    nodes = [
        helper.make_node(op_type, names, ["big"]),
        helper.make_node("ReduceSum", ["big"], ["big_sum"], keepdims=0),
        helper.make_node("Add", ["x", "big_sum"], ["x_moved"]),
    ]
    rest = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes, *rest])
    return model


@pytest.mark.parametrize("op_type", ["ConstantOfShape", "Tile", "Expand", "Range", "Pad"])
def test_constants_are_counted_before_they_are_computed(op_type: str) -> None:
    model = oversized(op_type, 2**40)  # no machine has four terabytes for it
    assert onnxfold.inspect(model)
    with pytest.raises(MemoryLimitError, match=r"'big'\) needs \d\.0 TiB, and the limit is"):
        onnxfold.fold(model, inputs="noise", samples=8)
    with pytest.raises(MemoryLimitError, match="'big'"):
        onnxfold.compare(model, model)


def test_small_constants_are_still_computed() -> None:
    result = onnxfold.fold(oversized("Tile", 64), inputs="noise", samples=8, verify=False)
    assert {n.op_type for n in result.model.graph.node} <= {"Gemm", "Relu", "Add"}


def test_what_nobody_knows_before_is_tried_in_a_process_with_a_limit() -> None:
    model = oversized("ConstantOfShape", 1)
    for at, (op_type, read, written) in enumerate(
        [("NonZero", ["x"], "places"), ("Shape", ["places"], "two"), ("Mul", ["two", "scale"], "shape")]
    ):
        model.graph.node.insert(at, helper.make_node(op_type, read, [written]))
    model.graph.initializer.append(numpy_helper.from_array(np.array([2**20, 2**4]), "scale"))
    first = next(n for n in model.graph.node if n.op_type == "ConstantOfShape")
    first.input[0] = "shape"
    feeds = {"x": np.ones((8, 7), np.float32)}
    with memory.memory_limit("1G"), pytest.raises(MemoryLimitError, match=r"more memory than the limit of 1\.0 GiB"):
        Session(model).run(feeds)


def test_large_inputs_are_counted_before_they_are_made() -> None:
    view = load(mlp(0))
    with memory.memory_limit("64K"), pytest.raises(MemoryLimitError, match="input 'x' of the shape"):
        synthetic_inputs(view, samples=10_000, exactly=True)
    with pytest.raises(MemoryLimitError, match="input 'x' of the shape"):
        noise_inputs([InputInfo("x", np.dtype(np.float32), (1, 60_000, 60_000, 64))], samples=1, seed=0, view=view)


def test_the_limit_wins_over_samples_with_a_note() -> None:
    result = onnxfold.fold(mlp(0), inputs="noise", samples=100_000, max_memory="64K", verify=False)
    assert result.report.inputs is None or result.report.inputs.samples < 100_000
    assert any("memory" in note for note in result.report.notes)


def test_unknown_sizes_do_not_add_up_along_a_stream() -> None:
    """Shapes that nothing tells, in a residual stream of sixty blocks: no block doubles what is counted."""
    nodes = [helper.make_node("NonZero", ["x"], ["found"]), helper.make_node("Cast", ["found"], ["y0"], to=1)]
    for i in range(60):
        nodes += [
            helper.make_node("Relu", [f"y{i}"], [f"r{i}"]),
            helper.make_node("Add", [f"y{i}", f"r{i}"], [f"y{i + 1}"]),
        ]
    graph = helper.make_graph(
        nodes,
        "stream",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 100])],
        [helper.make_tensor_value_info("y60", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    footprint = Footprint.of(load(model), {"x": (1, 100)})
    assert not footprint.unknown
    assert 400 < footprint.peak < 10_000
