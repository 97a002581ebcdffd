"""The node reader that channel rules, torch operators and exporters extend."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxfold.channels.context import NodeContext
from onnxfold.export.tflite.context import Op
from onnxfold.export.tflite.layout import NodeShapes
from onnxfold.graph.files.load import load
from onnxfold.graph.registry import NodeReader
from onnxfold.torch_graph.registry import TorchNode


def _resize() -> NodeReader:
    """A Resize whose region and scales are left out, and whose sizes are a weight."""
    node = helper.make_node(
        "Resize", ["x", "", "", "sizes"], ["y"], mode="linear", axes=[2, 3], cubic_coeff_a=-0.5, antialias=0
    )
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    sizes = numpy_helper.from_array(np.array([4, 4], np.int64), "sizes")
    graph = helper.make_graph([node], "g", inputs, outputs, [sizes])
    view = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))
    return NodeReader(view, view.nodes[0])


def test_attributes_and_their_defaults() -> None:
    node = _resize()
    assert (node.op_type, node.version, node.key, node.name) == ("Resize", 18, "y", "y")
    assert node.text("mode", "nearest") == "linear"
    assert node.text("nearest_mode", "round_prefer_floor") == "round_prefer_floor"
    assert node.integers("axes") == [2, 3]
    assert node.integers("none", range(2)) == [0, 1]
    assert node.number("cubic_coeff_a", -0.75) == -0.5
    assert node.integer("exclude_outside", 1) == 1
    assert node.has_attribute("antialias")
    assert not node.has_attribute("exclude_outside")
    assert node.value("exclude_outside") is None


def test_inputs_that_are_left_out_are_not_given() -> None:
    node = _resize()
    assert node.inputs == ["x", "", "", "sizes"]
    assert [node.has_input(i) for i in range(5)] == [True, False, False, True, False]
    assert [node.is_constant(i) for i in range(5)] == [False, False, False, True, False]
    assert node.input(9) == node.output(1) == ""
    assert node.has_output(0)


def test_constants_and_shapes() -> None:
    node = _resize()
    sizes = node.constant(3)
    assert sizes is not None
    assert sizes.tolist() == [4, 4]
    assert node.constant(0) is None
    assert node.constant(1) is None
    assert node.view.shape("y") == (None, 3, 4, 4)
    assert node.view.shape("nothing") is None


def test_all_readers_are_one() -> None:
    """None of them has a word of its own for what the shared reader says."""
    shared = {name for name in vars(NodeReader) if not name.startswith("_")}
    for reader in (NodeContext, TorchNode, Op, NodeShapes):
        assert issubclass(reader, NodeReader)
        assert not shared & set(vars(reader))


def test_an_optional_output_that_nobody_asks_for() -> None:
    node = helper.make_node("MaxPool", ["x"], ["y", ""], kernel_shape=[2, 2])
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    view = load(model)
    assert not NodeReader(view, view.nodes[0]).has_output(1)
