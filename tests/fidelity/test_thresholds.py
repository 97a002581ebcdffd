"""Thresholds of a comparison: what they are held against, what is proven, and what a pipeline sees."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import onnxfold
from onnxfold.cli import cli
from onnxfold.errors import ConfigError
from onnxfold.fidelity.measures import FidelityMeter, fidelity
from onnxfold.report import Fidelity
from onnxfold.report.comparison import ComparisonReport, lower_bound, samples_needed
from testing import models

NAN, INF = float("nan"), float("inf")


def _report(agree: int, samples: int) -> ComparisonReport:
    output = Fidelity("y", 0.1, agree / samples, None, samples, cosine=0.99, kl_divergence=0.2)
    return ComparisonReport([output], samples, "x")


@pytest.mark.parametrize(("successes", "trials"), [(8, 10), (95, 100), (299, 300)])
def test_the_bound_is_where_so_many_successes_have_a_chance_of_a_twentieth(successes: int, trials: int) -> None:
    """The definition: of the proportion below which what was seen is too lucky."""
    from scipy.stats import binom

    assert binom.sf(successes - 1, trials, lower_bound(successes, trials)) == pytest.approx(0.05)
    assert lower_bound(0, trials) == 0.0


def test_samples_that_prove() -> None:
    assert samples_needed(0.99, 0.0) == 299
    assert samples_needed(0.9, 0.1) is None
    needed = samples_needed(0.9, 0.05)
    assert needed is not None
    assert lower_bound(needed - round(0.05 * needed), needed) >= 0.9


def test_few_samples_do_not_prove_much() -> None:
    assert _report(100, 100).failures(min_agreement="99%") == [
        "output 'y': 0 disagreements of 100 prove 97.04 %, less than 99 %; 299 samples without a disagreement would "
        "prove 99 %"
    ]
    assert _report(299, 299).failures(min_agreement=0.99) == []
    (line,) = _report(99, 100).failures(min_agreement=0.98)
    assert "1 disagreement of 100 prove 95.34 %" in line
    assert "at this rate" in line
    (line,) = _report(90, 100).failures(min_agreement=0.98)
    assert line.endswith("agreement is 90 %")
    assert _report(100, 100).failures(min_agreement=1) == []
    assert _report(99, 100).failures(min_agreement=1.0) == [
        "output 'y': 1 disagreements of 100, where 100 % is asked for"
    ]


def test_one_line_for_every_threshold_that_is_missed() -> None:
    report = _report(1000, 1000)
    assert report.failures(min_agreement=0.99, max_error=0.1, min_cosine=0.99, max_kl=0.2) == []
    assert report.failures(max_error=0.05, min_cosine=0.999, max_kl=0.1) == [
        "output 'y': relative error 0.1 is above 0.05",
        "output 'y': cosine 0.99 is below 0.999",
        "output 'y': KL divergence 0.2 is above 0.1",
    ]


def test_what_was_not_measured_is_not_met() -> None:
    report = ComparisonReport([Fidelity("y", NAN)], 4, "x")
    lines = report.failures(min_agreement=0.5, max_error=1.0, min_cosine=0.5, max_kl=1.0)
    assert [line.split()[3] for line in lines] == ["agreement", "error", "cosine", "kl"]


@pytest.mark.parametrize(
    "given",
    [{"min_agreement": "99x"}, {"min_agreement": "120%"}, {"min_agreement": 0}, {"max_error": -1}, {"min_cosine": 2},
     {"max_kl": NAN}],
)  # fmt: skip
def test_thresholds_that_make_no_sense(given: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(given))):
        _report(1, 1).failures(**given)  # type: ignore[arg-type]


def test_cosine_and_divergence_are_those_of_their_definitions_in_batches() -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((600, 5))
    b = a + 0.3 * rng.standard_normal((600, 5))
    p, q = (np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (a, b))
    cosines = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    meter = FidelityMeter(["scores", "probabilities"])
    for part in (slice(0, 300), slice(300, 600)):
        meter.add([a[part], p[part]], [b[part], q[part]])
    scores, probabilities = meter.report("x").outputs
    assert scores.cosine == pytest.approx(cosines.mean())
    assert scores.kl_divergence == pytest.approx((p * np.log(p / q)).sum(axis=1).mean())
    assert probabilities.kl_divergence == pytest.approx(scores.kl_divergence)


def test_vectors_of_zeros_and_masked_scores() -> None:
    a = np.array([[0.0, 0.0], [0.0, 0.0], [-INF, 1.0], [NAN, NAN]])
    b = np.array([[0.0, 0.0], [1.0, 0.0], [-INF, 1.0], [1.0, 1.0]])
    (found,) = fidelity(["y"], [a], [b], inputs="x").outputs
    assert found.cosine == pytest.approx(2 / 3)
    assert found.kl_divergence is not None
    assert np.isfinite(found.kl_divergence)


def test_a_pipeline_sees_exit_1_one_line_and_json(tmp_path: Path) -> None:
    a, b = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(models.mlp(0), a)
    onnx.save(models.mlp(1), b)
    run = CliRunner().invoke
    same = run(cli, ["compare", str(a), str(a), "--min-agreement", "98%", "--max-error", "0", "--min-cosine", "1"])
    assert same.exit_code == 0
    other = run(cli, ["compare", str(a), str(b), "--json", "--max-error", "1e-3"])
    assert other.exit_code == 1
    (line,) = [line for line in other.stderr.splitlines() if line.startswith("not met")]
    values = json.loads(other.stdout)
    assert values["schema"] == 1
    assert [f"not met: {failure}" for failure in values["failures"]] == [line]
    assert values["outputs"][0]["kl_divergence"] > 0
    assert onnxfold.compare(a, b).failures(max_error=1e-3) == values["failures"]
