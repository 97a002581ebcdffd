"""What models write: tokens drawn from their scores, one by one, by rereading, and in blanks."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxfold.graph.files.load import load
from onnxfold.graph.run.session import Session
from onnxfold.inputs.token_inputs import TokenSource
from onnxfold.inputs.tokens import language_model
from onnxfold.inputs.tokens.interface import TokenInterface, token_interface
from onnxfold.inputs.tokens.language_model import ANCESTRAL, VARIED, LanguageModel, Sampling, Writing, most_varied
from testing.language_models import WORDS, decoder, encoder, grouped_query_decoder

NO_BANS = np.zeros(WORDS, bool)


def _model(proto: onnx.ModelProto) -> LanguageModel:
    interface = token_interface(load(proto))
    assert isinstance(interface, TokenInterface)
    return TokenSource(load(proto), interface).model(Session(proto))


def _begun(count: int, length: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Texts, and the places to write: not the first two, and some others not."""
    random = np.random.default_rng(1)
    free = random.random((count, length)) < 0.8
    free[:, :2] = False
    return random.integers(0, WORDS, (count, length)), free


@pytest.mark.parametrize("sampling", [VARIED, ANCESTRAL])
@pytest.mark.parametrize("proto", [decoder(), decoder(positions=40, layers=2), grouped_query_decoder(free_size=True)])
def test_text_is_drawn_from_the_scores_of_what_stands_before(proto: onnx.ModelProto, sampling: Sampling) -> None:
    """With its cache, token by token: the same as from one run over the whole text, and as its temperature says."""
    model = _model(proto)
    texts, free = _begun(4, 12)
    writing = Writing(model, NO_BANS, 3, sampling=sampling)
    ids = language_model.continue_texts(writing, texts, free)
    scores = model.all_scores(ids)
    uniform, temperature = writing.numbers(4, 12)
    for at in range(2, 12):
        found = writing.draw(scores[:, at - 1], uniform[:, at], temperature)
        assert np.array_equal(ids[:, at], np.where(free[:, at], found, texts[:, at]))
    assert len(np.unique(temperature)) == len(sampling.temperatures)


def test_ancestral_text_is_as_likely_as_its_model_says() -> None:
    """What a model loses on it is the entropy of its scores; on varied text, whose words are others, it is not."""
    model, beyond = _model(decoder()), {}
    for sampling in (ANCESTRAL, VARIED):
        texts = np.random.default_rng(1).integers(0, WORDS, (400, 12))
        free = np.ones(texts.shape, bool)
        free[:, :2] = False
        ids = language_model.continue_texts(Writing(model, NO_BANS, 3, sampling=sampling), texts, free)
        scores = np.float64(model.all_scores(ids)[:, 1:-1, :WORDS])
        logs = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))
        lost = -np.take_along_axis(logs, ids[:, 2:, None], axis=-1)[..., 0]
        differences = lost + (np.exp(logs) * logs).sum(axis=-1)
        beyond[sampling] = abs(differences.mean()) / (differences.std() / np.sqrt(differences.size))
    assert beyond[ANCESTRAL] < 4 < beyond[VARIED]


def test_rereading_gives_what_is_written_one_by_one() -> None:
    """Of the same weights without a past; and after k readings, k tokens are right."""
    texts, free = _begun(4, 10)
    written = language_model.continue_texts(Writing(_model(decoder()), NO_BANS, 3), texts, free)
    without = _model(decoder(past=False))
    assert np.array_equal(language_model.reread_texts(Writing(without, NO_BANS, 3), texts, free, 10), written)
    some = language_model.reread_texts(Writing(without, NO_BANS, 3), texts, free, 3)
    assert np.array_equal(some[:, :5], written[:, :5])
    nothing = np.zeros_like(free)
    assert np.array_equal(language_model.reread_texts(Writing(without, NO_BANS, 3), texts, nothing, 3), texts)
    assert np.array_equal(language_model.continue_texts(Writing(_model(decoder()), NO_BANS, 3), texts, nothing), texts)


@pytest.mark.parametrize("past", [True, False])
def test_no_more_sequences_than_there_are_take_memory(past: bool) -> None:
    """Scores of few words take little: thousands of sequences would fit beside each other."""
    model = _model(decoder(past=past))
    assert model.sequences_at_once(5, 16) == 5


def test_blanks_are_filled_in_by_the_scores_beside_them() -> None:
    """All inner positions are, the ends stay; and no special token is filled in."""
    model = _model(encoder(head=True))
    assert not model.is_causal
    banned = NO_BANS.copy()
    banned[:2] = True
    starts = np.full((5, 16), 1)
    ids = language_model.fill_in(Writing(model, banned, 0), starts, slice(1, 15), 1)
    assert (ids[:, [0, -1]] == 1).all()
    assert (ids[:, 1:-1] >= 2).all()
    assert len(np.unique(ids)) > 10


def test_repetitive_text_is_left_out() -> None:
    ids = np.stack([np.arange(20), np.zeros(20, int), np.arange(20)[::-1], np.arange(20) % 3])
    assert np.array_equal(most_varied(ids, 2), ids[[0, 2]])
