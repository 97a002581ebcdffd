"""Nodes that are run one by one: what they read, and how much memory they take for it."""

import tracemalloc
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfold.graph.files.load import load
from onnxfold.graph.run.node_runner import NodeRunner

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


@pytest.mark.parametrize(("kernel", "group", "width"), [(3, 1, 32), (3, 1, 30), (1, 1, 128), (3, 32, 32), (3, 1, 4)])
def test_convolution_whose_weight_is_packed_gives_the_same(kernel: int, group: int, width: int) -> None:
    random = np.random.default_rng(0)
    weight = random.standard_normal((width, width // group, kernel, kernel)).astype(np.float32)
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", width, "h", "w"]) for n in "xy"]
    node = helper.make_node("Conv", ["x", "weight"], ["y"], "conv", group=group)
    graph = helper.make_graph([node], "g", value[:1], value[1:], [numpy_helper.from_array(weight, "weight")])
    view = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    x = random.standard_normal((2, width, 6, 5)).astype(np.float32)
    for _ in range(2):
        windows = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), (2, 3))
        parts = zip(np.split(windows, group, 1), np.split(weight, group), strict=True)
        expected = np.concatenate([np.einsum("nchwij,ocij->nohw", w, k) for w, k in parts], 1)
        np.testing.assert_allclose(NodeRunner(view, view.nodes[0]).run({"x": x})["y"], expected, rtol=1e-4, atol=1e-4)
        weight = weight[::-1].copy()
        view.set_weight("weight", weight)


def test_resize_to_computed_sizes_runs_alone() -> None:
    """Onnxruntime counted no sizes where their number was not declared, and the network was repaired from weights."""
    text = """<ir_version: 8, opset_import: ["" : 18]> grow
    (float[n, 2, 4, 4] x, int64[4] sizes) => (float[n, 2, a, b] y)
    { y = Resize <mode = "linear"> (x, , , sizes) }"""
    view = load(onnx.parser.parse_model(text))
    runner = NodeRunner(view, view.nodes[0])
    for samples in (3, 2):
        feeds = {"x": np.zeros((samples, 2, 4, 4), np.float32), "sizes": np.array([samples, 2, 8, 8])}
        assert runner.run(feeds)["y"].shape == (samples, 2, 8, 8)
