"""Whether a network runs is tried on two samples; on a whole batch only where it refuses these."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfold.errors import EndlessRunError, VerificationError
from onnxfold.folding.inputs import choose_inputs
from onnxfold.graph.files.load import load
from onnxfold.graph.view import GraphView
from onnxfold.inputs.model_inputs import ModelInputs
from testing.models import chain_conv, random_input

MODEL = chain_conv(0)


def _tried(
    monkeypatch: pytest.MonkeyPatch, refused: dict[int, type[VerificationError]], fixed: bool = False
) -> list[int]:
    """Return the sizes of the batches that a trial runs; sizes in `refused` do not run."""
    sizes: list[int] = []

    class Walk(choose_inputs.Activations):
        def __init__(self, view: GraphView, batches: list[dict[str, np.ndarray]]) -> None:
            sizes.append(len(batches[0]["x"]))
            if sizes[-1] in refused:
                raise refused[sizes[-1]]("it does not run")
            super().__init__(view, batches)

    monkeypatch.setattr(choose_inputs, "Activations", Walk)
    inputs = ModelInputs([random_input(MODEL, 0, 16)] * 2, "noise", "", fixed)
    choose_inputs._require_run(load(MODEL), inputs)
    return sizes


def test_two_samples_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _tried(monkeypatch, {}) == [2]


def test_a_fixed_batch_is_run_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _tried(monkeypatch, {}, fixed=True) == [16]


def test_a_whole_batch_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _tried(monkeypatch, {2: VerificationError}) == [2, 16]
    with pytest.raises(VerificationError):
        _tried(monkeypatch, {2: VerificationError, 16: VerificationError})


def test_what_does_not_end_is_not_run_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EndlessRunError):
        _tried(monkeypatch, {2: EndlessRunError})
