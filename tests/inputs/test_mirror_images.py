"""A user's images get their mirror images beside them where the network answers both alike."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxfold.config import FoldConfig
from onnxfold.errors import VerificationError
from onnxfold.folding.inputs.choose_inputs import prepare_inputs
from onnxfold.graph.run.session import Session
from onnxfold.inputs import make_inputs
from onnxfold.inputs.images import mirror_images
from onnxfold.inputs.model_inputs import ModelInputs
from testing import models

Images = np.ndarray[Any, np.dtype[np.float32]]
_COUNT = 80


def _symmetric(bn: bool = True) -> onnx.ModelProto:
    """Return a classifier whose kernels are their own mirror images."""
    model = models.chain_conv(0, bn=bn)
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.ndim == 4:
            tensor.CopyFrom(numpy_helper.from_array((values + values[..., ::-1]) / 2, tensor.name))
    return model


def _images(model: onnx.ModelProto, count: int = _COUNT) -> dict[str, Images]:
    info = model.graph.input[0]
    shape = [d.dim_value for d in info.type.tensor_type.shape.dim[1:]]
    return {info.name: np.random.default_rng(1).standard_normal((count, *shape)).astype(np.float32)}


def _chosen(model: onnx.ModelProto, given: dict[str, Images], **options: Any) -> ModelInputs:
    inputs = prepare_inputs(model, FoldConfig(calibration=given, cache=None, **options)).inputs
    assert inputs is not None
    return inputs


def _joined(inputs: ModelInputs) -> Images:
    (name,) = inputs.batches[0]
    return np.concatenate([batch[name] for batch in inputs.batches])


def _fixed(model: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.shape.dim[0].dim_value = batch
    return model


@pytest.mark.parametrize("batch", [None, 4], ids=["free", "fixed"])
def test_every_image_has_its_mirror_image_behind_it(batch: int | None) -> None:
    model = _symmetric() if batch is None else _fixed(_symmetric(), batch)
    inputs = _chosen(model, _images(model))
    images = _joined(inputs)
    held_out = sum(len(values) for part in inputs.held_out for values in part.values())
    assert held_out == _COUNT // 5  # which are as they were given
    assert len(images) == 2 * (_COUNT - held_out)
    np.testing.assert_array_equal(images[1::2], images[::2, :, :, ::-1])
    assert "with their mirror images, answered alike" in inputs.reason
    if batch is not None:
        assert {len(values) for part in inputs.batches for values in part.values()} == {batch}


def test_a_network_that_tells_left_from_right_is_shown_none() -> None:
    model = models.flatten_conv(0)
    given = _images(model)
    inputs = _chosen(model, given)
    assert not inputs.is_mirrored
    assert "mirror" not in inputs.reason
    assert len(_joined(inputs)) == _COUNT * 4 // 5


def test_maps_of_answers_are_mirrored_with_the_images() -> None:
    model = _symmetric()
    pooled = next(node for node in model.graph.node if "Pool" in node.op_type or node.op_type == "ReduceMean")
    output = helper.make_tensor_value_info(pooled.input[0], onnx.TensorProto.FLOAT, None)
    del model.graph.output[:]
    model.graph.output.append(output)
    assert "with their mirror images" in _chosen(model, _images(model)).reason


def test_channels_may_be_the_last_axis() -> None:
    model = _symmetric()
    name, first = (
        model.graph.input[0].name,
        next(n for n in model.graph.node if n.input[0] == model.graph.input[0].name),
    )
    first.input[0] = "channels_first"
    model.graph.node.insert(0, helper.make_node("Transpose", [name], ["channels_first"], perm=[0, 3, 1, 2]))
    dims = model.graph.input[0].type.tensor_type.shape.dim
    channels, height, width = (d.dim_value for d in list(dims)[1:])
    for dim, size in zip(list(dims)[1:], (height, width, channels), strict=True):
        dim.dim_value = size
    images = _joined(_chosen(model, _images(model)))
    np.testing.assert_array_equal(images[1::2], images[::2, :, ::-1])


def test_many_images_are_enough_and_a_number_that_is_asked_for_is_exact() -> None:
    model = _symmetric()
    assert _chosen(model, _images(model, 400)).samples == 400 - 80
    assert _chosen(model, _images(model), samples=_COUNT).samples == _COUNT * 4 // 5


def test_without_the_memory_for_them_images_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = _symmetric(), _COUNT * 4 // 5
    for most, samples in ((2 * given, 2 * given), (2 * given - 1, given)):
        monkeypatch.setattr(make_inputs, "most_samples", lambda _, most=most: most)
        assert _chosen(model, _images(model)).samples == samples


def _labels(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the classifier with its scores less their means over some images, so that its classes vary, picked."""
    images, scores = _images(model), model.graph.output[0].name
    mean = Session(model).run(images)[0].mean(axis=0, dtype=np.float32)
    model.graph.initializer.append(numpy_helper.from_array(mean, "mean"))
    model.graph.node.append(helper.make_node("Sub", [scores, "mean"], ["centred"]))
    model.graph.node.append(helper.make_node("ArgMax", ["centred"], ["label"], axis=1, keepdims=0))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("label", onnx.TensorProto.INT64, [None]))
    return model


def test_numbers_of_classes_are_answers_too() -> None:
    symmetric, other = _labels(_symmetric()), _labels(models.chain_conv(0, bn=True))
    assert _chosen(symmetric, _images(symmetric)).is_mirrored
    assert not _chosen(other, _images(other)).is_mirrored


def _of_bytes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the classifier behind bytes, whose channels are the last axis."""
    nodes = list(model.graph.node)
    nodes[0].input[0] = "standard"
    front = [
        helper.make_node("Transpose", ["x"], ["first"], perm=[0, 3, 1, 2]),
        helper.make_node("Cast", ["first"], ["pixels"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Sub", ["pixels", "mean"], ["centred"]),
        helper.make_node("Div", ["centred", "deviation"], ["standard"]),
    ]
    del model.graph.node[:], model.graph.input[:]
    model.graph.node.extend([*front, *nodes])
    model.graph.input.append(helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, ["batch", 8, 8, 3]))
    for name, value in (("mean", 120.0), ("deviation", 60.0)):
        model.graph.initializer.append(numpy_helper.from_array(np.full((1, 3, 1, 1), value, np.float32), name))
    return model


def test_pixels_of_bytes_have_mirror_images_and_are_inverted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_inputs, "SAMPLES", 2_048)
    model = _of_bytes(_symmetric())
    images = {"x": np.random.default_rng(1).integers(0, 256, (_COUNT, 8, 8, 3), np.uint8)}
    assert _chosen(model, images).is_mirrored
    inverted = _joined(_inverted(model, cache=None))
    assert inverted.dtype == np.uint8
    assert 40 < inverted.std() < 90
    np.testing.assert_array_equal(inverted[1::2], inverted[::2, :, ::-1])


def test_runs_that_fail_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _symmetric()

    def fail(*_: object) -> float:
        raise VerificationError("it does not run")

    monkeypatch.setattr(mirror_images, "_difference", fail)
    assert not _chosen(_symmetric(), _images(model)).is_mirrored


def _inverted(model: onnx.ModelProto, **options: Any) -> ModelInputs:
    inputs = prepare_inputs(model, FoldConfig(inputs="deep-inversion", input_steps=(2,), **options)).inputs
    assert inputs is not None
    return inputs


def test_inverted_images_have_theirs_and_these_are_kept_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_inputs, "SAMPLES", 2_048)
    made, kept, exact = (_inverted(_symmetric(), cache=tmp_path, **more) for more in ({}, {}, {"samples": 32}))
    images = _joined(made)
    np.testing.assert_array_equal(images[1::2], images[::2, :, :, ::-1])
    np.testing.assert_array_equal(_joined(kept), images)
    assert made.is_mirrored
    assert kept.is_mirrored
    assert made.distinct == made.samples // 2
    assert exact.samples == exact.distinct == 32


def test_dead_leaves_behind_inverted_images_stay_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_inputs, "SAMPLES", 2_048)
    inputs = _inverted(_symmetric(bn=False), cache=None)
    assert "with the mirror images of inverted ones" in inputs.reason
    images, apart = _joined(inputs), re.match(r"(\d+) inverted .*, (\d+) dead leaves", inputs.reason)
    assert apart is not None
    inverted, leaves = map(int, apart.groups())
    assert len(images) == 2 * inverted + leaves
    np.testing.assert_array_equal(images[1 : 2 * inverted : 2], images[: 2 * inverted : 2, :, :, ::-1])
    assert not inputs.is_mirrored
