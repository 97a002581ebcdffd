"""Probes: what becomes of a consumer's error at the outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxfold.channels import FoldGroup, find_groups
from onnxfold.cluster.clusterings.elimination import eliminate
from onnxfold.folding.probes import sensitivity, trials
from onnxfold.folding.probes.sensitivity import Estimate, Probe, measured_sensitivities, sensitivities
from onnxfold.folding.probes.trials import relative_error
from onnxfold.graph.files.load import load
from onnxfold.graph.tensors import Array, Matrix
from onnxfold.graph.view import GraphView
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.inputs.tokens import answers
from onnxfold.inputs.tokens.answers import Answers, TokenAnswers, log_softmax
from onnxfold.progress import silent
from onnxfold.statistics.activations import Activations, Batches
from testing.graph_builder import GraphBuilder
from testing.models import chain_conv, mlp, random_input
from testing.observing import observed


def _sensitivities(model: onnx.ModelProto, batch: int = 8) -> list[float]:
    view = load(model)
    groups, feeds = find_groups(view).groups, random_input(model, 1, batch=64)
    seen = observed(view, groups, [feeds])
    found = [eliminate(moments, np.arange(g.size)) for g, moments in zip(groups, seen.moments, strict=True)]
    few = [{name: values[i : i + batch] for name, values in feeds.items()} for i in range(0, 8, batch)]
    probes = {i: Probe(g, found[i], seen.moments[i], of_tokens=False) for i, g in enumerate(groups)}
    return sensitivities(seen.reference, groups, few, probes).tolist()


def _branch(scale: float) -> onnx.ModelProto:
    """Return a branch that is added to the input, that many times as large."""
    g = GraphBuilder("branch", 0, (12,))
    inner = g.gemm(g.relu(g.gemm("x", 16)), 12)
    stream = g.node("Mul", ["x", g.constant("scale", np.float32(scale))], (12,))
    g.output(g.node("Add", [inner, stream], (12,)))
    return g.build()


def test_what_the_outputs_read_counts_as_it_is() -> None:
    assert _sensitivities(mlp(0))[-1] == pytest.approx(1.0)


def test_a_stream_dilutes_the_error_of_a_branch() -> None:
    alone, beside, diluted = (_sensitivities(_branch(scale))[0] for scale in (0.0, 1.0, 100.0))
    assert alone == pytest.approx(1.0, rel=1e-4)
    assert diluted < beside < alone
    assert diluted == pytest.approx(1e-2)  # the bound


def test_of_tokens_the_predicted_error_gives_the_measured_one() -> None:
    """At half of the width; and outputs that are caches do not count."""
    g = GraphBuilder("cached", 0, (5, 12))
    hidden = g.relu(g.matmul_add("x", 12))
    answer = g.matmul_add(g.relu(g.matmul_add(hidden, 16)), 12)
    g.output(g.node("Softmax", [answer], (5, 12)), "present")
    g.output(g.node("Identity", [answer], (5, 12)), "answer")
    model = g.build()
    view = load(model)
    groups, feeds = find_groups(view).groups, random_input(model, 1, batch=64)
    seen = observed(view, groups, [feeds])
    found = [  # drops cost what is predicted; merges are charged more
        eliminate(moments, np.arange(g.size), merges=False) for g, moments in zip(groups, seen.moments, strict=True)
    ]
    (i,) = (i for i, group in enumerate(groups) if group.size == 16)

    def probe(states: tuple[str, ...], vocabulary: int = 0) -> float:
        tokens = TokenAnswers(vocabulary, states)
        probes = {j: Probe(g, found[j], seen.moments[j], of_tokens=True) for j, g in enumerate(groups)}
        factors = sensitivities(seen.reference, groups, [feeds], probes, tokens=tokens)
        return float(factors[i])

    assert probe(("present",)) == pytest.approx(1.0, rel=0.05)  # the answer is what the consumer gives
    assert probe(()) != pytest.approx(probe(("present",)), rel=0.05)
    assert probe(("present", "answer")) == 1.0  # nothing to compare
    assert probe(("present",), vocabulary=12) != pytest.approx(probe(("present",)), rel=0.05)  # scores of twelve words


def test_probes_read_the_originals_scores_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And have the scores of one network at a time in memory."""
    g = GraphBuilder("deep", 0, (5, 12))
    x = "x"
    for _ in range(3):
        x = g.relu(g.matmul_add(x, 12))
    g.output(g.matmul_add(x, 12), "scores")
    model = g.build()
    view = load(model)
    groups, feeds = find_groups(view).groups, random_input(model, 1, batch=64)
    seen = observed(view, groups, [feeds])
    found = [eliminate(m, np.arange(g.size), merges=False) for g, m in zip(groups, seen.moments, strict=True)]
    tables: list[tuple[int, ...]] = []
    rows: list[tuple[int, ...]] = []

    def counted(scores: Array) -> Matrix:
        (rows if scores.ndim == 1 else tables).append(scores.shape)
        return log_softmax(scores)

    kept: list[str] = []
    run = Activations.run
    monkeypatch.setattr(answers, "log_softmax", counted)
    monkeypatch.setattr(Activations, "run", lambda *given: (kept.append(given[1].output[0]), run(*given))[1])
    probes = {i: Probe(g, found[i], seen.moments[i], of_tokens=True) for i, g in enumerate(groups)}
    factors = sensitivities(seen.reference, groups, [feeds], probes, tokens=TokenAnswers(12))
    assert len(groups) == 3
    assert len(kept) >= 6
    assert "scores" not in kept
    assert not (factors == 1.0).all()
    assert tables == [(320, 12)]
    assert rows == [(12,)] * 320 * 3


def test_the_divergence_of_scores() -> None:
    was, is_now = np.log([[0.5, 0.5], [0.2, 0.8]]) + 7.0, np.log([[0.25, 0.75], [0.2, 0.8]])
    assert Answers(was[None]).divergence(is_now[None]) == pytest.approx(
        0.5 * (0.5 * np.log(2) + 0.5 * np.log(0.5 / 0.75))
    )


def test_the_estimate_is_least_squares() -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((5000, 6)) @ random.standard_normal((6, 6))
    partition = eliminate([], np.arange(6)).partition(3)
    kept = x @ partition.encode.T
    best = np.linalg.lstsq(kept, x, rcond=None)[0].T @ partition.encode
    estimate = Estimate(partition, x.T @ x, np.float64, np.asarray)
    for samples in (x[:4], x):  # fewer than channels, and more
        np.testing.assert_allclose(estimate.of(samples), samples @ best.T, atol=0.05 * np.abs(samples).max())
    np.testing.assert_allclose(estimate.of(x[:4]), estimate.of(x)[:4], rtol=1e-9)


@pytest.mark.parametrize("batch", [1, 2, 4])
def test_batches_of_a_fixed_size_are_probed_together(batch: int) -> None:
    """One sample has no variance, and tells nothing of what is read without positions."""
    for model in (mlp(0), _branch(1.0), chain_conv(0, bn=False)):
        np.testing.assert_allclose(_sensitivities(model, batch), _sensitivities(model), rtol=1e-4)


def test_positions_are_narrowed_and_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there was no memory for all of them."""
    whole = _sensitivities(mlp(0))
    monkeypatch.setattr(sensitivity, "_ROWS", 3)
    monkeypatch.setattr(trials, "_NUMBERS", 16)
    np.testing.assert_allclose(_sensitivities(mlp(0)), whole, rtol=1e-4)


@pytest.mark.parametrize(("most_bytes", "samples"), [(1 << 30, 8), (1, 2)])
def test_large_images_are_probed_with_fewer_samples(
    monkeypatch: pytest.MonkeyPatch, most_bytes: int, samples: int
) -> None:
    counts = []

    def count(view: GraphView, groups: list[FoldGroup], batches: Batches, *rest: Any, **how: Any) -> Matrix:
        counts.extend(len(batch["x"]) for batch in batches)
        return np.ones(len(groups))

    monkeypatch.setattr(sensitivity, "_BYTES", most_bytes)
    monkeypatch.setattr(sensitivity, "sensitivities", count)
    model = mlp(0)
    view, inputs = load(model), ModelInputs([random_input(model, 1, batch=64)], "dead-leaves", "")
    groups = find_groups(view).groups
    seen = observed(view, groups, inputs.batches)
    found = eliminate(seen.moments[0], np.arange(groups[0].size))
    probe = Probe(groups[0], found, seen.moments[0], of_tokens=False)
    measured_sensitivities(view, groups, inputs, {0: probe}, silent)
    assert counts == [samples]


def test_overflown_activations_tell_nothing() -> None:
    x = np.full((4, 4), np.inf)
    with pytest.raises((np.linalg.LinAlgError, ValueError)):
        Estimate(eliminate([], np.arange(4)).partition(2), x, np.float64, np.asarray)


def test_relative_errors() -> None:
    one = np.ones((1, 4), np.float32)
    assert relative_error([one], [2 * one]) == pytest.approx(1.0)
    assert np.isnan(relative_error([0 * one], [one]))
    assert relative_error([one, 3 * one], [2 * one, 3 * one]) == pytest.approx(0.5)  # the variance of both together
