"""A folded network must give outputs of the original's shapes, at sizes other than those that it was folded at, too."""

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxfold.errors import VerificationError
from onnxfold.fidelity.verify import Verification
from onnxfold.graph.files.load import load
from onnxfold.graph.shapes.open_shapes import open_shapes

LENGTH = 8


def framing(*, frames: int | None = None, batch: int = 2, counts: bool = False) -> ModelProto:
    """Return a network that gives frames of two samples; their number, the batch, or a count of values can be fixed."""
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Slice", ["sizes", "zero", "one"], ["samples"]),
        helper.make_node("Concat", ["samples", "frames", "two"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    if counts:
        nodes.append(helper.make_node("NonZero", ["y"], ["z"]))
    result = ("z", TensorProto.INT64, [3, None]) if counts else ("y", TensorProto.FLOAT, [None, None, batch])
    values = {"zero": [0], "one": [1], "two": [batch], "frames": [-1 if frames is None else frames]}
    if frames is not None:
        values["target"] = [-1, frames, batch]
        nodes = nodes[3:]
    weights = [numpy_helper.from_array(np.array(v, np.int64), k) for k, v in values.items()]
    graph = helper.make_graph(
        nodes, "framing", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, None])],
        [helper.make_tensor_value_info(*result)], weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def check(original: ModelProto, folded: ModelProto, length: int | None = LENGTH) -> None:
    """Verify a model that is said to be the fold of another one, at the length 8; None leaves it free."""
    view = load(folded)
    view.assume({} if length is None else {"x": (None, length)})
    Verification(original, view, threads=None).run()


def test_a_number_of_frames_that_holds_at_the_length_of_the_fold_alone_is_refused() -> None:
    with pytest.raises(VerificationError, match=r"output 'y' had the shape \(1, 8, 2\) and now has \(2, 4, 2\)"):
        check(framing(), framing(frames=LENGTH // 2))


def test_another_shape_at_the_length_of_the_fold_is_refused() -> None:
    with pytest.raises(VerificationError, match="had the shape"):
        check(framing(), framing(frames=LENGTH // 4))


def test_a_length_that_nobody_assumes_is_changed_too() -> None:
    with pytest.raises(VerificationError, match=r"the shape \(1, 64, 2\) and now has \(2, 32, 2\)"):
        check(framing(), framing(frames=32), length=None)


def test_the_same_shapes_pass() -> None:
    check(framing(), framing())
    check(framing(), framing(), length=None)


def test_an_input_of_unknown_rank_is_left_as_it_is() -> None:
    unknown = framing()
    unknown.graph.input[0].type.tensor_type.ClearField("shape")
    check(unknown, unknown)


def test_counts_of_values_may_differ() -> None:
    assert open_shapes(load(framing(counts=True))) == {"z"}
    assert not open_shapes(load(framing()))


def test_sizes_that_are_inputs_open_shapes_and_those_of_inputs_do_not() -> None:
    nodes = [
        helper.make_node("Expand", ["x", "n"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Shape", ["b"], ["c"]),
        helper.make_node("ConstantOfShape", ["c"], ["d"]),
        helper.make_node("Shape", ["x"], ["e"]),
        helper.make_node("ConstantOfShape", ["e"], ["f"]),
        helper.make_node("Add", ["x", "x"], ["g"]),
        helper.make_node("Mystery", ["g"], ["h"], domain="com.example"),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 1]),
        helper.make_tensor_value_info("n", TensorProto.INT64, [2]),
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "dfh"]
    model = helper.make_model(helper.make_graph(nodes, "sizes", inputs, outputs))
    assert open_shapes(load(model)) == set("abcdh")
