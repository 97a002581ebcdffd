"""Inverted images are taken where folds on them lose less than folds on dead leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxfold import api
from onnxfold.config import FoldConfig
from onnxfold.files import Cache
from onnxfold.folding.inputs import compare_inputs as comparison
from onnxfold.folding.inputs.choose_inputs import prepare_inputs
from onnxfold.folding.inputs.compare_inputs import compare_inputs
from onnxfold.folding.open_model import open_model
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.inputs.sample_kinds import DOUBT_OF_IMAGES, INVERTED, LEAVES, SAMPLE_KINDS
from onnxfold.progress import silent
from onnxfold.statistics.moments import NO_DOUBT

MODEL = Path(api.__file__).parent / "data" / "lenet5.onnx"
STAGE = "compare inputs"


def _kinds() -> tuple[ModelInputs, ModelInputs]:
    """Return dead leaves, and images that are all nearly alike, as those of an inversion that went astray."""
    leaves = prepare_inputs(MODEL, FoldConfig(inputs=LEAVES, samples=128, cache=None)).inputs
    assert leaves is not None
    random = np.random.default_rng(0)

    def alike(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        made: np.ndarray[Any, Any] = values[:1] + 1e-3 * random.standard_normal(values.shape)
        return made.astype(values.dtype)

    batches = [{name: alike(values) for name, values in batch.items()} for batch in leaves.batches]
    return replace(leaves, kind=INVERTED, batches=batches), leaves


@pytest.mark.parametrize("order", [1, -1])
def test_the_kind_whose_fold_loses_less_is_taken(order: int) -> None:
    astray, leaves = _kinds()
    opened = open_model(MODEL, {}, silent)
    before = opened.view.model.SerializeToString()
    best = compare_inputs(opened, [astray, leaves][::order], 0, Cache(None), silent)
    assert best.kind == LEAVES
    assert best.batches is leaves.batches
    assert "loss of a fold at 30%: on " in best.reason
    assert opened.view.model.SerializeToString() == before


def test_what_was_compared_is_remembered(tmp_path: Path) -> None:
    astray, leaves = _kinds()
    opened = open_model(MODEL, {}, silent)
    stages: list[str] = []
    results = [
        compare_inputs(opened, [astray, leaves], 0, Cache(tmp_path), lambda stage, *_: stages.append(stage))
        for _ in range(2)
    ]
    assert results[0].reason == results[1].reason
    assert stages.count(STAGE) == 2  # one trial per kind, once
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(kept.read_bytes()[:-1])  # what is broken is measured again
    assert compare_inputs(opened, [astray, leaves], 0, Cache(tmp_path), silent).reason == results[0].reason


def test_why_the_kinds_could_not_be_compared_is_said() -> None:
    one = [replace(kind, batches=[{name: values[:1] for name, values in kind.batches[0].items()}]) for kind in _kinds()]
    best = compare_inputs(open_model(MODEL, {}, silent), one, 0, Cache(None), silent)
    assert best.kind == INVERTED
    assert "; not compared with dead-leaves: there are too few samples to hold some out" in best.reason


@pytest.mark.parametrize(
    ("options", "compares"),
    [
        ({}, True),
        ({"inputs": "deep-inversion"}, False),
        ({"inputs": "dead-leaves"}, False),
        ({"input_steps": (2,)}, False),
    ],
    ids=str,
)
def test_only_a_default_of_large_images_is_compared(
    options: dict[str, Any], compares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, stages = FoldConfig(samples=32, cache=None, **options), list[str]()
    prepare_inputs(MODEL, config, lambda stage, *_: stages.append(stage))
    assert STAGE not in stages  # 32 pixels a side
    monkeypatch.setitem(SAMPLE_KINDS, LEAVES, replace(SAMPLE_KINDS[LEAVES], doubted_from=32))
    prepare_inputs(MODEL, config, lambda stage, *_: stages.append(stage))
    assert (STAGE in stages) == compares


def test_large_images_of_a_user_are_trusted_as_far_as_a_trial_says(monkeypatch: pytest.MonkeyPatch) -> None:
    leaves = prepare_inputs(MODEL, FoldConfig(inputs=LEAVES, samples=128, cache=None)).inputs
    assert leaves is not None
    given = {name: np.concatenate([b[name] for b in leaves.batches]) for name in leaves.batches[0]}
    config, stages = FoldConfig(calibration=given, cache=None), list[str]()

    def chosen(config: FoldConfig) -> ModelInputs:
        inputs = prepare_inputs(MODEL, config, lambda stage, *_: stages.append(stage)).inputs
        assert inputs is not None
        return inputs

    assert not chosen(config).is_doubted
    assert STAGE not in stages  # 32 pixels a side
    monkeypatch.setitem(SAMPLE_KINDS, LEAVES, replace(SAMPLE_KINDS[LEAVES], doubted_from=28))
    trusted = chosen(config)
    assert stages.count(STAGE) == 2
    assert "loss of a fold at 30%: on data" in trusted.reason
    assert "on data in doubt" in trusted.reason
    for losses, is_doubted in (([0.2, 0.1], True), ([0.1, 0.2], False)):
        monkeypatch.setattr(comparison, "_losses", lambda *_, losses=losses: losses)
        inputs = chosen(config)
        assert inputs.is_doubted is is_doubted
        assert inputs.fit_rules.doubt == (DOUBT_OF_IMAGES if is_doubted else NO_DOUBT)
    stages.clear()
    chosen(replace(config, method="prune-l2"))
    assert STAGE not in stages  # magnitudes of weights trust no image
