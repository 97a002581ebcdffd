"""Peak memory of activations."""

from collections import Counter
from math import prod

import onnx
import pytest
from onnx import TensorProto, helper

from onnxfold.budget.costs.memory import RamCost, count_ram
from onnxfold.graph.files.load import load
from onnxfold.graph.view import GraphView
from testing.graph_builder import GraphBuilder
from testing.models import ALL_MODELS, residual
from tests.budget.folded import NAMES, folds, graphs_of, model
from tests.budget.test_macs import fixed_batch

_VIEWS = {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"}
_SAME_SIZE = {"Relu", "Clip", "Sigmoid", "BatchNormalization", "Mul", "Add", "Sub", "Div", "PRelu"}


def simulated_peak(view: GraphView) -> int:
    """Run an allocator with reference counts over a model of float32 activations and a batch of one."""
    shapes = {name: view.shape(name) for n in view.nodes for name in (*n.input, *n.output) if name}
    size = {name: 4 * prod(d or 1 for d in shape) for name, shape in shapes.items() if shape is not None}
    readers = Counter(name for n in view.nodes for name in n.input if name and not view.is_weight(name))
    readers.update(view.output_names)
    home, holders, memory = {}, Counter(), {}
    for name in view.input_names:
        home[name], memory[name] = name, size[name]
        holders[name] += readers[name]
    peak = sum(memory.values())
    for node in view.nodes:
        read = [name for name in node.input if name and not view.is_weight(name)]
        out = node.output[0]
        first = home[read[0]]
        alone = len(set(read)) == 1 and holders[first] == 1 and first not in view.input_names
        if node.op_type in _VIEWS or (node.op_type in _SAME_SIZE and alone and memory[first] == size[out]):
            home[out] = first
        else:
            home[out], memory[out] = out, size[out]
        holders[home[out]] += readers[out]
        peak = max(peak, sum(memory.values()))
        for name in read:
            holders[home[name]] -= 1
        for place in [place for place in memory if holders[place] == 0]:
            del memory[place]
    return peak


@pytest.mark.parametrize("name", [n for n in NAMES if n in ALL_MODELS or n.startswith("torch")])
def test_peak_is_what_an_allocator_needs(name: str) -> None:
    graphs = graphs_of(model(name))
    cost = RamCost(graphs)
    for widths, folded in folds(model(name)):
        assert cost(widths) == simulated_peak(folded)


def _bytes(*channels: int) -> int:
    return 4 * 64 * sum(channels)


def test_conv_batch_norm_relu_count_once() -> None:
    g = GraphBuilder("chain", 0, (3, 8, 8))
    h = g.relu6(g.conv_bn(g.relu(g.conv_bn("x", 6)), 8))
    g.output(g.head(h))
    proto = g.build()
    assert count_ram(load(proto)) == _bytes(6, 8)
    cost = RamCost(graphs_of(proto))
    assert [cost(w) for w in ([6, 8], [2, 8], [1, 1], [6, 1])] == [
        _bytes(6, 8), _bytes(2, 8), _bytes(3, 1), _bytes(3, 6)
    ]  # fmt: skip


def test_a_residual_stays_until_it_is_added() -> None:
    """Stem 8, branch 8: the sum needs stem, branch and result; a channel less of the stream saves all three."""
    g = GraphBuilder("residual", 0, (3, 8, 8))
    stem = g.relu(g.conv("x", 8))
    branch = g.relu(g.conv(stem, 6))
    g.output(g.head(g.relu(g.add(g.conv(branch, 8), stem))))
    cost = RamCost(graphs_of(g.build()))
    assert cost([8, 6]) == _bytes(8, 8, 8)
    assert cost([7, 6]) == _bytes(7, 7, 7)
    assert cost([2, 6]) == _bytes(6, 2, 2)


def test_lenet_5() -> None:
    """Two convolutions with pooling on 1x32x32: the first of each is what fills the memory."""
    g = GraphBuilder("lenet", 0, (1, 32, 32))
    h = g.max_pool(g.relu(g.conv("x", 6, 5, pad=0)))
    h = g.max_pool(g.relu(g.conv(h, 16, 5, pad=0)))
    g.output(g.gemm(g.relu(g.gemm(g.relu(g.gemm(g.flatten(h), 120)), 84)), 10))
    cost = RamCost(graphs_of(g.build()))
    assert cost([6, 16, 120, 84]) == 4 * (6 * 28 * 28 + 6 * 14 * 14)
    assert cost([3, 16, 120, 84]) == 4 * (3 * 28 * 28 + 32 * 32)  # now it is the first convolution and the input


def _graph(nodes: list[onnx.NodeProto], outputs: dict[str, int], elem_type: int = TensorProto.FLOAT) -> GraphView:
    x = helper.make_tensor_value_info("x", elem_type, ["N", 10])
    infos = [helper.make_tensor_value_info(n, t, None) for n, t in outputs.items()]
    graph = helper.make_graph(nodes, "g", [x], infos)
    return load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


@pytest.mark.parametrize(
    ("elem_type", "size"), [(TensorProto.FLOAT, 4), (TensorProto.FLOAT16, 2), (TensorProto.DOUBLE, 8)]
)
def test_element_types(elem_type: int, size: int) -> None:
    node = helper.make_node("Softmax", ["x"], ["y"])
    assert count_ram(_graph([node], {"y": elem_type}, elem_type)) == 20 * size


def test_a_cast_to_a_wider_type_needs_memory_of_its_own() -> None:
    nodes = [helper.make_node("Softmax", ["x"], ["h"]), helper.make_node("Cast", ["h"], ["y"], to=TensorProto.DOUBLE)]
    assert count_ram(_graph(nodes, {"y": TensorProto.DOUBLE})) == 10 * (4 + 8)


def test_the_caller_keeps_input_and_output() -> None:
    """The input is not overwritten; the first output stays until the end."""
    relu = helper.make_node("Relu", ["x"], ["y"])
    assert count_ram(_graph([relu], {"y": 1})) == 80
    nodes = [relu, helper.make_node("Relu", ["y"], ["a"]), helper.make_node("Softmax", ["a"], ["z"])]
    assert count_ram(_graph(nodes, {"y": 1, "z": 1})) == 120


def test_views_that_are_read_later_are_not_overwritten() -> None:
    nodes = [
        helper.make_node("Softmax", ["x"], ["h"]),
        helper.make_node("Flatten", ["h"], ["v"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Add", ["r", "v"], ["y"]),
    ]
    assert count_ram(_graph(nodes, {"y": 1})) == 120
    nodes[3] = helper.make_node("Softmax", ["r"], ["y"])  # nobody reads the view: the result of Relu takes its place
    assert count_ram(_graph(nodes, {"y": 1})) == 80


def test_a_fixed_batch_is_what_the_model_runs() -> None:
    assert count_ram(load(fixed_batch(residual(0), 3))) == 3 * (count_ram(load(residual(0))) or 0)
