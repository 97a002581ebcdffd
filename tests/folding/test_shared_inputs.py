"""Inputs that folds share change no result, also where the clock ended their generation."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from onnxfold import api
from onnxfold.config import FoldConfig
from onnxfold.folding.inputs import choose_inputs
from onnxfold.folding.inputs.choose_inputs import prepare_inputs

MODEL = Path(api.__file__).parent / "data" / "lenet5.onnx"


@pytest.mark.parametrize(
    "options",
    [
        {"inputs": "dead-leaves", "samples": 64},
        {"method": "fold-ar", "inputs": "noise", "samples": 64},
        {"inputs": "deep-inversion", "samples": 64, "input_seconds": 0.2},
    ],
    ids=lambda options: options["inputs"],
)
def test_a_fold_on_shared_inputs_gives_the_same_bytes(options: dict, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[type-arg]
    config = FoldConfig(sparsity=0.5, cache=None, **options)
    shared = pickle.loads(pickle.dumps(prepare_inputs(MODEL, config)))
    repeated = shared.repeatable_request(config)
    again = api.fold_request(MODEL, repeated).model.SerializeToString()
    monkeypatch.setattr(choose_inputs, "model_inputs", None)  # nothing is generated any more
    folded = api.fold_request(MODEL, config, run_on=shared, measures_latency=False)
    assert folded.model.SerializeToString() == again
    assert folded.report.latency is None
    assert folded.report.config.get("input_steps", []) == list(repeated.input_steps)


def test_a_fold_that_runs_nothing_takes_none() -> None:
    config = FoldConfig(channel_ratio=0.5, method="fold-naive", inputs="noise", samples=8, cache=None)
    shared = prepare_inputs(MODEL, config)
    assert shared.inputs is not None
    report = api.fold_request(MODEL, config, run_on=shared).report
    assert report.inputs is None
    assert any("change nothing: inputs, samples" in note for note in report.notes)


def test_seeds_have_inputs_of_their_own() -> None:
    config = FoldConfig(sparsity=0.5, inputs="noise", samples=8, cache=None)
    first, second = (prepare_inputs(MODEL, replace(config, seed=seed)).inputs for seed in (0, 1))
    assert first is not None
    assert second is not None
    assert (next(iter(first.batches[0].values())) != next(iter(second.batches[0].values()))).any()
