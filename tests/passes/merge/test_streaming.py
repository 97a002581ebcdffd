"""Weights in a file of their own are merged when they are written, one after the other."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfold
from onnxfold.graph.tensors import DerivedTensor
from onnxfold.passes.merge import fold_channels
from testing.models import chain_conv, grouped_conv, mlp


@pytest.mark.parametrize("build", [mlp, chain_conv, grouped_conv])
def test_streamed_weights_are_those_of_a_fold_in_memory(
    build: Callable[[int], onnx.ModelProto], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "in.onnx"
    onnx.save(build(0), path, save_as_external_data=True, location="in.bin", size_threshold=0)
    options = {"channel_ratio": 0.4, "method": "prune-l1"}
    expected = onnxfold.fold(build(0), **options).model
    monkeypatch.setattr(fold_channels, "_STREAMED_BYTES", 1)
    result = onnxfold.fold(path, **options)
    assert any(isinstance(weight, DerivedTensor) for weight in result.view.weights.values())
    result.save(tmp_path / "out.onnx", save_as_external_data=True)
    for found in (result.model, onnx.load(tmp_path / "out.onnx")):
        weights = {t.name: onnx.numpy_helper.to_array(t) for t in found.graph.initializer}
        assert len(weights) == len(expected.graph.initializer)
        for tensor in expected.graph.initializer:
            np.testing.assert_array_equal(weights[tensor.name], onnx.numpy_helper.to_array(tensor))


def test_the_source_of_streamed_weights_is_never_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_channels, "_STREAMED_BYTES", 1)
    path = tmp_path / "in.onnx"
    onnx.save(mlp(0), path, save_as_external_data=True, location="in.bin", size_threshold=0)
    before = (tmp_path / "in.bin").read_bytes()
    result = onnxfold.fold(path, channel_ratio=0.4, method="prune-l1")
    with pytest.raises(onnxfold.errors.ConfigError):
        result.save(tmp_path / "in.bin")
    assert (tmp_path / "in.bin").read_bytes() == before
