"""What exporters write in several ways is inverted alike."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from onnxfold.graph.files.load import load
from onnxfold.inputs.inversion.deep_inversion import (
    InversionSettings,
    LossTerms,
    class_scores,
    deep_inversion,
    fused_layers,
)
from onnxfold.inputs.inversion.descent import read_layout
from testing.models import ALL_MODELS, random_input


def _plain() -> onnx.ModelProto:
    return ALL_MODELS["chain_conv_plain"](0)


def _with_biases_behind() -> onnx.ModelProto:
    """Every bias of a convolution is an addition behind it, as TensorFlow writes it."""
    model = _plain()
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for node in nodes:
        if node.op_type != "Conv":
            model.graph.node.append(node)
            continue
        bias, output = node.input.pop(), node.output[0]
        values = numpy_helper.to_array(weights[bias]).reshape(1, -1, 1, 1)
        weights[bias].CopyFrom(numpy_helper.from_array(values, bias))
        node.output[0] = f"{output}_plain"
        model.graph.node.extend([node, helper.make_node("Add", [f"{output}_plain", bias], [output])])
    onnx.checker.check_model(model, full_check=True)
    return model


def _final(model: onnx.ModelProto) -> LossTerms:
    start = random_input(model, 1, batch=8)
    return deep_inversion(load(model), start, settings=InversionSettings(exact_steps=(3,), bfloat16=False)).final


def test_biases_behind_convolutions_are_theirs() -> None:
    layers = fused_layers(load(_with_biases_behind()))
    assert [node.op_type for node, _ in layers] == ["Add", "Add"]
    assert [bias for _, bias in layers] == [bias for _, bias in fused_layers(load(_plain()))]
    for name, value in _final(_plain()).items():
        assert _final(_with_biases_behind())[name] == pytest.approx(value, rel=1e-4)


def test_images_lie_as_convolutions_read_them() -> None:
    """Behind a Transpose, images whose last axis holds the channels do so as they are."""
    first, last = torch.zeros(2, 3, 8, 8), torch.zeros(2, 8, 8, 3)
    for images in (read_layout(first), read_layout(last).permute(0, 3, 1, 2)):
        assert images.shape == first.shape
        assert images.is_contiguous(memory_format=torch.channels_last)


def _picked(*tail: tuple[str, dict[str, int]]) -> onnx.ModelProto:
    """The network with nodes behind its scores, which are then called 'scores'."""
    model = _plain()
    model.graph.node[-1].output[0] = name = "scores"
    for i, (operator, attributes) in enumerate(tail):
        inputs = [name, "k"] if operator == "TopK" else [name, "target"] if operator == "Reshape" else [name]
        outputs = ["largest", f"t{i}"] if operator == "TopK" else [f"t{i}"]
        model.graph.node.append(helper.make_node(operator, inputs, outputs, **attributes))
        name = f"t{i}"
    model.graph.initializer.append(numpy_helper.from_array(np.array([2], np.int64), "k"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([0, -1], np.int64), "target"))
    are_classes = any(operator in ("ArgMax", "TopK") for operator, _ in tail)
    kind = TensorProto.INT64 if are_classes else TensorProto.FLOAT
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info(name, kind, None))
    return onnx.shape_inference.infer_shapes(model)


SOFTMAX, ARGMAX = ("Softmax", {"axis": 1}), ("ArgMax", {"axis": 1, "keepdims": 0})


@pytest.mark.parametrize(
    "make",
    [
        lambda: _picked(SOFTMAX),
        lambda: _picked(ARGMAX),
        lambda: _picked(("TopK", {"axis": 1})),
        lambda: _picked(SOFTMAX, ARGMAX),
        lambda: _picked(SOFTMAX, ("Identity", {}), ("Reshape", {})),
        lambda: _picked(SOFTMAX, ("Cast", {"to": TensorProto.FLOAT}), ARGMAX),
    ],
)
def test_scores_are_those_that_answers_are_made_of(make: Callable[[], onnx.ModelProto]) -> None:
    model = make()
    assert class_scores(load(model)) == "scores"
    terms = _final(model)
    assert terms["class_scores"] == pytest.approx(_final(_plain())["class_scores"], rel=1e-4)


def test_sigmoids_are_no_scores_of_classes_whatever_stands_behind_them() -> None:
    assert class_scores(load(_picked(("Sigmoid", {}), ("Identity", {})))) == ""
