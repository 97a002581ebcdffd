"""Folding undoes widening: channels that compute the same are merged without a trace, by every method."""

from itertools import product

import numpy as np
import onnx
import pytest

import onnxfold
from testing.cells import in_turn
from testing.compare import relative_difference
from testing.models import ALL_MODELS, random_input, run
from testing.quick import LOSSLESS, groups_of, quick_fold
from testing.widening.widen import Order, widen

#: Whether every row is doubled by itself, and where its copies stand.
WAYS: list[tuple[bool, Order]] = list(product((False, True), ("forward", "backward", "random")))


def _draw(name: str, case: int) -> tuple[int, bool, Order]:
    """Return a seed and a way; two tests together go all ways with every model, and the models do in each."""
    number = list(ALL_MODELS).index(name) + case
    return (0 if number == 0 else 977 * number + 5), *WAYS[number % len(WAYS)]


def _assert_recovers(model: onnx.ModelProto, result: onnxfold.FoldResult, seed: int) -> None:
    assert [g.folded_width for g in result.report.groups] == [g.size for g in groups_of(model)]
    feeds = random_input(model, seed)
    assert relative_difference(run(model, feeds), run(result.model, feeds)) <= 5e-4


@pytest.mark.parametrize("factor", [2, None], ids=["twice", "one-to-three"])
@pytest.mark.parametrize("name", ALL_MODELS)
def test_widening_is_equal(name: str, factor: int | None) -> None:
    """The oracle itself: a widened model is valid, wider, and computes the same."""
    seed, per_row, order = _draw(name, 0 if factor else 3)
    model = ALL_MODELS[name](seed)
    wide, ratios = widen(model, seed, factor, per_row, order)
    onnx.checker.check_model(wide, full_check=True)
    feeds = random_input(model, seed)
    for a, b in zip(run(model, feeds), run(wide, feeds), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4 * np.abs(a).max())
    for before, after in zip(groups_of(model), onnxfold.inspect(wide), strict=True):
        assert after.name == before.name
        assert after.size == round(before.size / (1.0 - ratios[before.name]))
        assert factor is None or after.size == factor * before.size


@pytest.mark.parametrize(("name", "method"), in_turn(ALL_MODELS, LOSSLESS))  # the others: pytest.mark.long
def test_folding_undoes_doubling(name: str, method: str) -> None:
    seed, per_row, order = _draw(name, LOSSLESS.index(method))
    model = ALL_MODELS[name](seed)
    wide, _ = widen(model, seed, 2, per_row, order)
    _assert_recovers(model, quick_fold(wide, channel_ratio=0.5, method=method, verify=False), seed)


@pytest.mark.parametrize(("name", "method"), in_turn(ALL_MODELS, LOSSLESS))  # the others: pytest.mark.long
def test_folding_undoes_uneven_widening(name: str, method: str) -> None:
    """Channels that exist one to three times; every group is given the ratio that leads back."""
    seed, per_row, order = _draw(name, 3 + LOSSLESS.index(method))
    model = ALL_MODELS[name](seed)
    wide, ratios = widen(model, seed, None, per_row, order)
    result = quick_fold(wide, channel_ratio=0.0, ratios=ratios, method=method, verify=False)
    _assert_recovers(model, result, seed)


@pytest.mark.parametrize("method", LOSSLESS)
@pytest.mark.parametrize("name", ["residual", "dense_net", "grouped_conv", "flatten_conv"])
def test_surplus_duplicates_are_lossless_too(name: str, method: str) -> None:
    """At half the ratio only some of the duplicates go, in a network whose other groups are kept whole."""
    model = ALL_MODELS[name](5)
    wide, _ = widen(model, 5, 2, per_row=True, order="backward")
    feeds = random_input(model, 5)
    expected = run(model, feeds)
    result = quick_fold(wide, channel_ratio=0.25, method=method, verify=False)
    assert all(g.folded_width == round(0.75 * g.width) for g in result.report.groups)
    assert relative_difference(expected, run(result.model, feeds)) <= 5e-4
    kept = [result.report.groups[0].name]
    partly = quick_fold(wide, channel_ratio=0.5, keep=kept, method=method, verify=False)
    assert partly.report.groups[0].folded_width == partly.report.groups[0].width
    assert relative_difference(expected, run(partly.model, feeds)) <= 1e-4


@pytest.mark.parametrize("method", LOSSLESS)
def test_by_sparsity(method: str) -> None:
    """The share of weights that the duplicates make up, asked for as sparsity, is met and lossless."""
    model = ALL_MODELS["residual"](3)
    wide, _ = widen(model, 3)
    small, large = (sum(int(np.prod(t.dims)) for t in m.graph.initializer) for m in (model, wide))
    result = quick_fold(wide, 1 - small / large, method=method)
    assert result.report.after.parameters == small
    assert result.report.before.parameters == large
    _assert_recovers(model, result, 3)
