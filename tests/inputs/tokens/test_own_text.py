"""A quarter or more of what a decoder reads is its own text, evenly between what a user gives."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxfold
import onnxfold.machine.memory as machine_memory
from onnxfold.files import Cache
from onnxfold.graph.files.load import load
from onnxfold.inputs import kept_inputs
from onnxfold.inputs.make_inputs import spread
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.inputs.tokens import language_model, token_plan
from onnxfold.inputs.tokens.interface import token_interface
from onnxfold.inputs.tokens.token_plan import GIVEN_TEXT, TOKENS, planned_beside
from testing.inputs import model_inputs
from testing.language_models import WORDS, decoder, encoder

IDS = np.random.default_rng(0).integers(0, WORDS, (21, 40))


def _inputs(model: onnx.ModelProto | None = None, ids: Any = IDS, **options: Any) -> ModelInputs:
    return model_inputs(load(model or decoder()), "auto", {"input_ids": ids}, adds_text=True, **options)


def _ids(inputs: ModelInputs) -> np.ndarray[Any, Any]:
    return np.concatenate([batch["input_ids"] for batch in inputs.batches])


def _where(inputs: ModelInputs) -> list[int]:
    """Return the places of the user's texts."""
    known = {tuple(row): i for i, row in enumerate(IDS)}
    return [known.get(tuple(row), -1) for row in _ids(inputs)]


def test_a_third_as_many_stand_between_the_given_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_plan, "TOKENS", IDS.size)
    inputs = _inputs()
    places = _where(inputs)
    assert [i for i in places if i >= 0] == list(range(len(IDS)))
    assert places.count(-1) == len(IDS) // 3
    assert inputs.kind == "data"
    assert "280 tokens between them written by the model" in inputs.reason
    assert inputs.samples == 28
    # All other inputs fit the ids, and words are as common as in both.
    assert {len(batch["attention_mask"]) == len(batch["input_ids"]) for batch in inputs.batches} == {True}
    assert inputs.tokens.words is not None
    counted = np.bincount(_ids(inputs).ravel(), minlength=WORDS)
    assert np.corrcoef(counted, inputs.tokens.words)[0, 1] > 0.99


def test_batches_are_evenly_between_others() -> None:
    given, own = ([{"x": np.array([name, i])} for i in range(count)] for name, count in ((0, 6), (1, 2)))
    order = [tuple(batch["x"].tolist()) for batch in spread(given, own)]
    assert order == [(0, 0), (0, 1), (1, 0), (0, 2), (0, 3), (0, 4), (1, 1), (0, 5)]


@pytest.mark.parametrize(
    ("given", "tokens"),
    [((1000, 64), TOKENS / 3), ((48, 256), TOKENS / 3), ((24, 256), TOKENS / 2), ((3, 256), TOKENS * 15 / 16)],
)
def test_what_is_missing_of_the_usual_tokens_is_written_and_a_quarter_at_least(
    given: tuple[int, int], tokens: float
) -> None:
    view = load(decoder())
    plan = planned_beside(view, token_interface(view), given)
    assert plan is not None
    assert plan.length == min(given[1], GIVEN_TEXT)
    assert plan.count == math.ceil(tokens / plan.length)


def test_own_texts_are_of_their_own_length() -> None:
    """Written text repeats itself the more the longer it is."""
    view = load(decoder())
    plan = planned_beside(view, token_interface(view), (24, 2 * GIVEN_TEXT))
    assert plan is not None
    assert (plan.count, plan.length) == (TOKENS // 3 // GIVEN_TEXT, GIVEN_TEXT)


def test_batches_of_a_fixed_size_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 4
    monkeypatch.setattr(token_plan, "TOKENS", 36 * IDS.shape[1])
    inputs = _inputs(model, np.tile(IDS, (2, 1))[:36])
    assert [len(batch["input_ids"]) for batch in inputs.batches] == [4] * 12
    monkeypatch.setattr(token_plan, "TOKENS", 8 * IDS.shape[1])
    few = _inputs(model, IDS[:8])
    assert np.array_equal(_ids(few), IDS[:8])


@pytest.mark.parametrize("case", ["no time", "no memory", "encoder"])
def test_given_texts_stand_alone_where_nothing_can_be_written(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"seconds": 0.0} if case == "no time" else {}
    if case == "no memory":
        monkeypatch.setattr(machine_memory, "limit", lambda: 1 << 16)
    inputs = _inputs(encoder() if case == "encoder" else None, **options)
    assert np.array_equal(_ids(inputs), IDS)
    assert inputs.reason == "the given samples"


def test_what_was_written_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_inputs, "WORTH_SECONDS", 0.0)
    cache = Cache(tmp_path)
    first, other = (_ids(_inputs(cache=cache, seed=seed)) for seed in (0, 1))
    assert not np.array_equal(first, other)
    monkeypatch.setattr(language_model, "continue_texts", None)
    assert np.array_equal(_ids(_inputs(cache=cache)), first)


@pytest.mark.parametrize(("method", "adds"), [("fold-ls", True), ("wanda-sp", False), ("flap", False)])
def test_published_methods_read_what_they_are_given_only(method: str, adds: bool) -> None:
    result = onnxfold.fold(
        decoder(), 0.05, method=method, calibration={"input_ids": IDS}, verify=False, input_seconds=0.5
    )
    assert result.report.inputs is not None
    assert ("written by the model" in result.report.inputs.reason) == adds
