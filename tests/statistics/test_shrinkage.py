"""Shrinkage of covariances: few samples make no group look free, ample ones stay as they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from onnxfold.channels import find_groups
from onnxfold.cluster.clusterings.elimination import eliminate
from onnxfold.graph.files.load import load
from onnxfold.statistics.moments import Doubt, SplitMoments, intensity, shrink_covariance
from onnxfold.statistics.observe import ConsumerMoments, FitRules, Observing
from testing.models import chain_conv, random_input
from testing.observing import observed

Array = NDArray[Any]


def _samples(count: int, n: int = 48, batches: int = 2) -> list[Array]:
    """Return batches of independent channels."""
    return np.array_split(np.random.default_rng(0).standard_normal((count, n)).astype(np.float32), batches)


def _moments(parts: list[Array], doubt: float = 0.0) -> ConsumerMoments:
    n = parts[0].shape[1]
    moments = SplitMoments(parts, n)
    noise, whole = moments.noise(), moments.join()
    covariance = whole.covariance
    about = Doubt(doubt, of_variances=doubt > 0.0)
    return ConsumerMoments(covariance, np.eye(n), intensity(noise, whole.count, covariance, doubt), about)


@pytest.mark.parametrize("batches", [1, 2, 12])
def test_a_gram_short_of_rank_makes_no_group_look_free(batches: int) -> None:
    """12 samples: as they are, 12 of 48 independent channels tell all others; in truth, three quarters are lost."""
    seen = _moments(_samples(12, batches=batches))
    raw = ConsumerMoments(seen.covariance, seen.gram)
    assert eliminate([raw], np.arange(48)).errors[12] < 0.05
    assert eliminate([seen], np.arange(48)).errors[12] > 0.5


def test_ample_samples_are_left_alone() -> None:
    mixing = np.random.default_rng(1).standard_normal((48, 48)).astype(np.float32)
    seen = _moments([part @ mixing for part in _samples(20_000)])
    assert seen.shrinkage == 0.0
    assert seen.trusted is seen.covariance


def test_halves_make_up_the_covariance() -> None:
    parts = _samples(999, 5, 4)
    whole = SplitMoments(parts, 5).join()
    assert whole.count == 999
    np.testing.assert_allclose(whole.covariance, np.cov(np.concatenate(parts).T, bias=True), atol=1e-6)


def test_shrinking_keeps_the_trace_and_comes_closer_to_the_truth() -> None:
    seen = _moments(_samples(30))
    assert np.trace(seen.trusted) == pytest.approx(np.trace(seen.covariance))
    assert np.linalg.norm(seen.trusted - np.eye(48)) < 0.5 * np.linalg.norm(seen.covariance - np.eye(48))
    np.testing.assert_array_equal(shrink_covariance(seen.covariance, 0.0), seen.covariance)


def test_doubt_takes_its_part_however_many_samples_there_are() -> None:
    mixing = np.random.default_rng(1).standard_normal((48, 4)).astype(np.float32)
    parts = [part[:, :4] @ mixing.T for part in _samples(20_000)]
    sure, doubtful = _moments(parts), _moments(parts, 0.7)
    assert doubtful.shrinkage == pytest.approx(0.7)
    assert eliminate([sure], np.arange(48)).errors[4] < 0.1 < 0.4 < eliminate([doubtful], np.arange(48)).errors[4]


def test_doubt_makes_merges_dear() -> None:
    """Pairs of channels that go together on the inputs are merged, unless the inputs are in doubt."""
    pairs = [np.repeat(part[:, :6], 2, axis=1) + 0.3 * part[:, 6:18] for part in _samples(20_000)]
    sure, doubtful = (eliminate([_moments(pairs, doubt)], np.arange(12)).partition(6) for doubt in (0.0, 0.7))
    assert (sure.labels >= 0).sum() > 6
    assert (doubtful.labels >= 0).sum() == 6


def test_exact_duplicates_stay_free() -> None:
    """They are told apart by no sample, however few there are."""
    parts = [np.repeat(part, 2, axis=1) for part in _samples(8, 6)]
    seen = replace(_moments(parts), duplicates=np.repeat(np.arange(6), 2))
    assert seen.shrinkage > 0.5
    assert eliminate([seen], np.arange(12)).errors[6] < 2e-3
    assert eliminate([seen], np.arange(12)).errors[5] > 0.05


def test_what_is_dead_on_data_stays_free() -> None:
    parts = [np.concatenate([part, np.zeros_like(part)], axis=1) for part in _samples(8, 6)]
    assert eliminate([_moments(parts)], np.arange(12)).errors[6] < 2e-3


def test_a_consumer_behind_pooling_sees_few_images_as_few() -> None:
    """One sample per image is left of a convolution's many positions."""
    view = load(chain_conv(0, widths=(6, 40), bn=False))
    groups = find_groups(view).groups
    feeds = random_input(view.model, 1, batch=8)
    (body,), (head,) = observed(view, groups, [feeds], Observing(FitRules(shrinks=True))).moments
    assert body.shrinkage == 0.0 < head.shrinkage
    raw = ConsumerMoments(head.covariance, head.gram)
    assert eliminate([head], np.arange(40)).errors[8] > 3 * eliminate([raw], np.arange(40)).errors[8]


def test_variances_are_trusted_unless_they_are_in_doubt() -> None:
    covariance = np.array([[9.0, 3.0], [3.0, 4.0]])
    for of_variances, variances in ((False, [9.0, 4.0]), (True, [6.5, 6.5])):
        seen = ConsumerMoments(covariance, np.eye(2), 0.5, Doubt(0.5, of_variances=of_variances))
        np.testing.assert_allclose(seen.trusted, [[4.5, 1.5], [1.5, 2.0]] + np.diag(variances) / 2)
