"""Norms are trained to answer as the original does, and kept only if held-out answers come closer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxfold
from onnxfold.errors import ConfigError, UnsupportedModelError
from onnxfold.graph.files.load import load
from onnxfold.progress import silent
from onnxfold.torch_graph.norms import norm_weights
from testing import models
from testing.genai_models import genai_decoder
from testing.inputs import model_inputs
from testing.language_models import decoder, encoder

pytest.importorskip("torch")
from onnxfold.folding.after import tune_norms as tuning

FAST: dict[str, Any] = {"samples": 24, "cache": None, "verify": False, "tune_norms": True, "inputs": "noise"}


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tuning.tune_norms.__kwdefaults__, "steps", 30)  # type: ignore[arg-type]


def _weights(model: onnx.ModelProto) -> dict[str, np.ndarray[Any, Any]]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "grouped queries": lambda: genai_decoder("packed"),
    "decomposed": lambda: decoder(layers=2),
    "states": encoder,
    "batch norm": lambda: models.residual(0),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_answers_come_closer_and_only_norms_change(make: Callable[[], onnx.ModelProto]) -> None:
    model = make()
    plain, result = (
        onnxfold.fold(model, channel_ratio=0.4, method="prune-l1", **FAST | {"tune_norms": tunes})
        for tunes in (False, True)
    )
    record = result.report.tuning
    assert record is not None
    assert plain.report.tuning is None
    assert (record.steps, record.kept) == (30, record.after < record.before)
    assert record.after < 0.97 * record.before
    norms = set(norm_weights(load(plain.model)))
    before, after = _weights(plain.model), _weights(result.model)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert before.keys() == after.keys()
    assert changed
    assert changed <= norms
    assert record.weights == sum(before[name].size for name in norms)
    assert result.report.config["tune_norms"] is True
    assert "trained for 30 steps" in str(record)


def test_the_same_seed_gives_the_same_bytes() -> None:
    made = [onnxfold.fold(encoder(), channel_ratio=0.4, method="prune-l1", **FAST).model for _ in range(2)]
    assert made[0].SerializeToString() == made[1].SerializeToString()


def test_what_brings_answers_no_closer_is_not_kept() -> None:
    model = encoder()
    view = load(model)
    record = tuning.tune_norms(view, model, model_inputs(view, "noise", samples=24), 0, silent)
    assert not record.kept  # the answers are the original's already
    assert record.before == pytest.approx(0.0, abs=1e-10)
    assert _weights(view.model) == {}
    for name, values in _weights(model).items():
        np.testing.assert_array_equal(view.weight(name), values)


def test_what_cannot_be_tuned_is_refused_before_anything_is_run() -> None:
    with pytest.raises(ConfigError, match="the model has none"):
        onnxfold.fold(models.mlp(0), channel_ratio=0.4, **FAST)
    model = models.residual(0)
    extra = onnx.helper.make_node("NonZero", [model.graph.output[0].name], ["places"], name="the_places")
    model.graph.node.append(extra)
    model.graph.output.append(onnx.helper.make_tensor_value_info("places", onnx.TensorProto.INT64, None))
    with pytest.raises(UnsupportedModelError, match="norms cannot be tuned: node 'the_places'"):
        onnxfold.fold(model, channel_ratio=0.4, **FAST)
