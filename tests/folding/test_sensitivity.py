"""Probes: what becomes of a consumer's error at the outputs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxfold.channels import find_groups
from onnxfold.cluster.elimination import eliminate
from onnxfold.folding.sensitivity import estimate, relative_error, sensitivities
from onnxfold.graph.load import load
from onnxfold.statistics.observe import observe
from testing.graph_builder import GraphBuilder
from testing.models import mlp, random_input


def _sensitivities(model: onnx.ModelProto) -> list[float]:
    view = load(model)
    groups, feeds = find_groups(view).groups, random_input(model, 1, batch=64)
    seen = observe(view, groups, [feeds], match=False)
    found = [eliminate(moments, np.arange(g.size)) for g, moments in zip(groups, seen.moments, strict=True)]
    few = {name: values[:8] for name, values in feeds.items()}
    return sensitivities(seen.reference, groups, few, found, seen.moments).tolist()


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


def test_the_estimate_is_least_squares() -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((5000, 6)) @ random.standard_normal((6, 6))
    partition = eliminate([], np.arange(6)).partition(3)
    kept = x @ partition.encode.T
    best = np.linalg.lstsq(kept, x, rcond=None)[0].T @ partition.encode
    np.testing.assert_allclose(estimate(partition, x.T @ x), best, atol=0.02 * np.abs(best).max())


def test_relative_errors() -> None:
    one = np.ones((1, 4), np.float32)
    assert relative_error(one, 2 * one) == pytest.approx(1.0)
    assert np.isnan(relative_error(0 * one, one))
