"""Probabilities of tokens: counts of a text, and a prior for what it did not show."""

from pathlib import Path

import numpy as np

from onnxfold.inputs.tokens.tokenizer import frequencies, read_tokenizer
from testing.language_models import WORDS, write_tokenizer


def test_what_was_not_seen_is_as_common_as_the_prior_says(tmp_path: Path) -> None:
    tokenizer = read_tokenizer(write_tokenizer(tmp_path / "tokenizer.json"))
    prior = tokenizer.prior(WORDS)
    ids = np.array([[5, 5, 5, 6], [7, 7, 5, 6]])
    found = frequencies(ids, WORDS, tokenizer)
    assert np.isclose(found.sum(), 1.0)
    assert found[5] > found[6] > 0.1
    unseen = np.setdiff1d(np.flatnonzero(prior), [5, 6, 7])
    ratio = found[unseen] / prior[unseen]
    np.testing.assert_allclose(ratio, ratio[0])
    assert 3 / 11 * 0.9 <= ratio[0] <= 3 / 11
    assert (found > 0.0).all()


def test_what_was_drawn_tells_no_more_than_the_prior(tmp_path: Path) -> None:
    tokenizer = read_tokenizer(write_tokenizer(tmp_path / "tokenizer.json"))
    prior = tokenizer.prior(WORDS)
    words, special = np.flatnonzero(prior), np.flatnonzero(prior == 0.0)
    ids = np.random.default_rng(0).choice(WORDS, (10, 8), p=prior)
    ids[:, 0] = special[0]
    found = frequencies(ids, WORDS, tokenizer, are_drawn=True)
    assert np.isclose(found.sum(), 1.0)
    np.testing.assert_allclose(found[words] / found[words].sum(), prior[words], rtol=1e-6)
    assert np.isclose(found[special[0]], 1 / 8, rtol=0.1)
    assert (found > 0.0).all()
