"""Nodes that are run one by one: what they read, and how much memory they take for it."""

import tracemalloc
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from onnxfold.graph.load import load
from onnxfold.graph.node_runner import NodeRunner

_WIDTH, _ROWS = 256, 80 * 1024  # 80 MiB in float32


def _write_lookup(path: Path) -> None:
    """Write a model that looks rows up in a table of which most is a hole in the file."""
    table = TensorProto(name="table", dims=[_ROWS, _WIDTH], data_type=TensorProto.FLOAT)
    with (path.parent / "table.bin").open("wb") as file:
        file.truncate(4 * _ROWS * _WIDTH)
        file.seek(4 * 7 * _WIDTH)
        np.arange(_WIDTH, dtype=np.float32).tofile(file)
    table.data_location = TensorProto.EXTERNAL
    table.external_data.add(key="location", value="table.bin")
    x = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", _WIDTH])
    nodes = [helper.make_node("Gather", ["table", "ids"], ["y"], "lookup")]
    graph = helper.make_graph(nodes, "g", [x], [y], [table])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())


def test_large_table_is_not_copied_for_a_few_rows(tmp_path: Path) -> None:
    _write_lookup(tmp_path / "m.onnx")
    view = load(tmp_path / "m.onnx")
    tracemalloc.start()
    try:
        found = NodeRunner(view, view.nodes[0]).run({"ids": np.array([7, 8])})["y"]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(found, [np.arange(_WIDTH), np.zeros(_WIDTH)])
    assert peak < 4 << 20


def test_large_weight_that_was_edited_is_used_as_it_is(tmp_path: Path) -> None:
    _write_lookup(tmp_path / "m.onnx")
    view = load(tmp_path / "m.onnx")
    view.set_weight("table", np.ones((_ROWS, _WIDTH), np.float32))
    found = NodeRunner(view, view.nodes[0]).run({"ids": np.array([7])})["y"]
    np.testing.assert_array_equal(found, np.ones((1, _WIDTH)))
