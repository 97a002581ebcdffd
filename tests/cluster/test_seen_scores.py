"""Scores of channels that were seen: Wanda in its structured form, and FLAP's fluctuations."""

from __future__ import annotations

import numpy as np
import pytest

import onnxfold
from onnxfold.channels import find_groups
from onnxfold.channels.group import FoldGroup
from onnxfold.cluster.clusterings.scores import (
    ByComparedScore,
    fluctuation_errors,
    fluctuations,
    keep_largest,
    wanda_scores,
)
from onnxfold.graph.files.load import load
from onnxfold.statistics.observe import ConsumerMoments, Observing
from testing.models import chain_conv, mlp, random_input
from testing.observing import observed
from testing.rule_models.table import RULE_MODELS

RNG = np.random.default_rng(0)


def _observed(model: object, index: int = 0) -> tuple[FoldGroup, list[ConsumerMoments], object]:
    view = load(model)  # type: ignore[arg-type]
    groups = find_groups(view).groups
    feeds = random_input(model, 1, batch=16)  # type: ignore[arg-type]
    seen = observed(view, groups, [feeds], Observing(by_place=True))
    return groups[index], seen.moments[index], view


def test_scores_are_those_of_the_papers() -> None:
    """One fully connected consumer: sum of |w| root mean square, and variance times sum of w^2, standardised."""
    _, moments, view = _observed(mlp(0, widths=(6, 8)))
    (places,) = [seen.places for seen in moments]
    assert places is not None
    weight = view.weight("gemm_1_w").astype(np.float64)  # type: ignore[attr-defined]
    columns = weight if weight.shape[1] == 6 else weight.T
    np.testing.assert_allclose(places.absolute[:, 0], np.abs(columns).sum(axis=0)[:6])
    covariance = moments[0].covariance
    np.testing.assert_allclose(places.variance[:, 0], np.diag(covariance), rtol=1e-5)
    wanda = np.abs(columns).sum(axis=0)[:6] * np.sqrt(np.diag(covariance) + places.mean[:, 0] ** 2)
    np.testing.assert_allclose(wanda_scores(moments), wanda, rtol=1e-5)
    raw = np.diag(covariance) * (columns**2).sum(axis=0)[:6]
    np.testing.assert_allclose(fluctuations(moments), (raw - raw.mean()) / raw.std(), rtol=1e-4)
    energy = float((moments[0].gram * covariance).sum())
    np.testing.assert_allclose(fluctuation_errors(moments), raw / energy, rtol=1e-4)


def test_places_of_a_head_have_their_own_statistics() -> None:
    """Eight dimensions a head: a loud one with small weights counts by itself."""
    model = RULE_MODELS["MultiHeadAttention"]()
    group, moments, _ = _observed(model)
    assert group.apart
    found = [seen.places for seen in moments if seen.places is not None]
    assert found
    for places in found:
        assert places.mean.shape == places.absolute.shape
        assert len(places.mean) == group.size
    by_hand = sum((p.absolute * np.sqrt(p.variance + p.mean**2)).sum(axis=1) for p in found)
    np.testing.assert_allclose(wanda_scores(moments), by_hand)


def test_losses_follow_the_scores_across_groups() -> None:
    """Per weight, the loss of the next channel is exp(z), so that one bound of z chooses all widths."""
    group, _, _ = _observed(chain_conv(0, widths=(6, 8)))
    z = np.array([0.3, -1.0, 2.0, -0.5, 0.1, -0.9])
    candidates = ByComparedScore(group, z, np.arange(1.0, 7.0), 10, "flap")
    assert candidates.partition(4).representatives.tolist() == [0, 2, 3, 4]
    np.testing.assert_allclose(-np.diff(candidates.losses[1:]), 10 * np.exp(np.sort(z)[::-1])[1:])
    assert candidates.errors.tolist() == [np.inf, 18.0, 17.0, 12.0, 8.0, 2.0, 0.0]
    assert np.isinf(candidates.losses[0])
    assert candidates.losses[6] == 0.0


def test_blocks_lose_equally_many() -> None:
    view = load(RULE_MODELS["GroupQueryAttention-cached"]())
    (group,) = (g for g in find_groups(view).groups if "conv_0" in g.nodes)
    assert group.block_count == 2
    scores = np.array([5.0, 4.0, 3.0, 0.3, 0.2, 0.1])
    candidates = ByComparedScore(group, scores, np.ones(6), 1, "flap")
    assert candidates.partition(4).representatives.tolist() == [0, 1, 3, 4]
    pairs = np.exp([3.0, 4.0, 5.0]) + np.exp([0.1, 0.2, 0.3])
    np.testing.assert_allclose(candidates.losses[[4, 2]], np.cumsum(pairs)[:2])
    assert keep_largest(scores, group, 2).representatives.tolist() == [0, 3]


@pytest.mark.parametrize("method", ["wanda-sp", "flap"])
def test_dead_channels_go_first(method: str) -> None:
    """Channels that are zero on all inputs: neither method keeps one of them while it has others."""
    model = chain_conv(0, widths=(6, 8))
    shape = {t.name: tuple(t.dims) for t in model.graph.initializer}["conv_1_w"]
    weights = {"conv_1_w": RNG.normal(size=shape).astype(np.float32)}
    weights["conv_1_w"][:, [1, 4]] = 0.0  # nobody reads these
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            tensor.CopyFrom(_named(tensor.name, weights[tensor.name]))
    feeds = random_input(model, 2, batch=16)
    result = onnxfold.fold(model, ratios={"conv_0": 1 / 3}, channel_ratio=0.0, method=method, calibration=feeds)
    assert result.report.fidelity is not None
    assert result.report.fidelity.outputs[0].relative_error < 1e-5


def _named(name: str, values: np.ndarray) -> object:
    from onnx import numpy_helper

    return numpy_helper.from_array(values, name)
