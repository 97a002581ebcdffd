"""Networks that answer with classes are refined by the scores that these are picked from; images may be bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onnxfold
from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.files.load import load
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.inputs.sample_kinds import DATA
from testing import models

pytest.importorskip("torch")
from onnxfold.folding.after.refine_samples import draw_samples

OPTIONS: dict[str, Any] = {
    "channel_ratio": 0.4, "method": "prune-l1", "samples": 24, "cache": None, "verify": False, "inputs": "noise",
    "refine": "all", "refine_steps": 30,
}  # fmt: skip


def _behind(operator: str, **attributes: int) -> onnx.ModelProto:
    """Return a classifier with an operator behind its scores, which gives integers."""
    model = models.residual(0)
    node = helper.make_node(operator, [model.graph.output[0].name], ["class"], **attributes)
    model.graph.node.append(node)
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("class", TensorProto.INT64, None))
    return model


def test_scores_behind_classes_come_closer() -> None:
    plain = onnxfold.fold(models.residual(0), **OPTIONS).report.refinement
    picked = onnxfold.fold(_behind("ArgMax", axis=1), **OPTIONS).report.refinement
    assert plain is not None
    assert picked is not None
    assert picked.kept
    assert (picked.loss_before, picked.loss_after) == pytest.approx((plain.loss_before, plain.loss_after))


def test_integers_that_nothing_is_picked_for_are_refused_before_anything_is_run() -> None:
    with pytest.raises(UnsupportedModelError, match=r"cannot be refined: it answers with integers alone"):
        onnxfold.fold(_behind("Cast", to=TensorProto.INT64), **OPTIONS)


@pytest.mark.parametrize("shape", [(8, 3, 20, 20), (8, 20, 20, 3)], ids=["first", "last"])
def test_images_of_bytes_are_varied(shape: tuple[int, ...]) -> None:
    images = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    shown = ModelInputs([{"x": images.copy()}], DATA, "given")
    varied = next(draw_samples(load(models.residual(0)), shown, len(images), 0))["x"]
    assert varied.dtype == np.uint8
    assert varied.shape == shape
    assert (varied != images).any(axis=(1, 2, 3)).all()
    assert abs(float(varied.mean()) - float(images.mean())) < 10
