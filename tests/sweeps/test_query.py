"""The language of --pick: what it means, what it refuses, and that unknown values are neither true nor false."""

from __future__ import annotations

import pytest

from onnxfold.errors import ConfigError
from onnxfold.sweeps.answers.query import parse
from tests.sweeps.rows import row


@pytest.mark.parametrize(
    "text",
    [
        "latency < 0.5x and agreement > 0.95",
        "latency<.5x and agreement>95%",
        "latency <= 1.5ms and latency >= 1500us and latency == 0.0015s and latency < 1.6",
        "weights == 0.5k and weights = 500 and macs <= 2M and size == 2K and size <= 2KiB",
        "not weights > 0.5x",
        "weights < 1 or (macs < 1 or agreement >= 96 %)".replace("96 %", "96%"),
        "weights < 1 and macs < 1 or agreement > 0.5",
        "method == fold-ls and method != 'fold-ar' and method == fold-*",
        'model == "net.onnx" AND NOT goal == sparsity',
        "goal == 'sparsity 0.5'",
        "relative-error < 1.5e-1",
        "seed == 0",
        "not (weights > 1 and weights < 1)",
    ],
)
def test_what_is_true(text: str) -> None:
    assert parse(text).holds(row()) is True


@pytest.mark.parametrize(
    "text",
    ["latency < 0.48x", "weights < 500", "agreement > 0.96", "method == fold", "not weights < 1x", "macs<1 or ram<1"],
)
def test_what_is_not_true(text: str) -> None:
    assert parse(text).holds(row()) is not True


def test_and_binds_more_than_or() -> None:
    assert parse("weights < 1000 or weights < 1 and weights < 1").holds(row())
    assert not parse("(weights < 1000 or weights < 1) and weights < 1").holds(row())


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("ram < 1", None), ("not ram < 1", None), ("ram < 1x", None), ("accuracy > 0.5", None),
        ("ram < 1 or weights < 1000", True), ("ram < 1 and weights < 1", False), ("ram < 1 and weights < 1000", None),
        ("cluster == kmeans", None), ("cluster != kmeans", None),
    ],
)  # fmt: skip
def test_what_is_unknown_decides_nothing(text: str, holds: bool | None) -> None:
    assert parse(text).holds(row()) is holds


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "a comparison is missing"),
        ("agrement > 0.9", "did you mean 'agreement'?"),
        ("zzz > 0.9", "there are weights"),
        ("agreement", "after 'agreement' comes a sign"),
        ("agreement >", "comes a value"),
        ("agreement > 95", "write 95% or 0.95"),
        ("agreement > high", "compared with a number"),
        ("agreement > 0.5x", "no value before the fold"),
        ("weights < 3ms", "'weights' has k, m, g, b"),
        ("seed < 3k", "'seed' has no unit"),
        ("method > fold-ls", "compare it by == or !="),
        ("method == (", "is no text"),
        ("(weights < 1", "a ')' is missing"),
        ("weights < 1)", "')' was not expected"),
        ("weights < 1 weights < 2", "'weights' was not expected"),
        ("weights < 1 and", "a comparison is missing"),
        ("__import__('os').system('true') == 1", "is neither a column"),
        ("exec('x') == 1", "'exec' is no column"),
        ("weights < 1; macs < 2", "is neither a column"),
        ("weights < -1", "is neither a column"),
        ("latency < 1.2.3", "is neither a column"),
        ("not " * 60 + "weights < 1", "nested too deeply"),
        ("(" * 60 + "weights < 1" + ")" * 60, "nested too deeply"),
        ("weights < 1 or " * 200 + "weights < 1", "longer than"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=r"--pick|the expression") as error:
        parse(text)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
