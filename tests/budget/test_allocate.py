"""Widths for a request: ratios, globs, rounding, and the sparsity that was asked for."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxfold.budget.allocate import TOLERANCE, solve_uniform
from onnxfold.budget.costs.weights import WeightCost, count_parameters
from onnxfold.budget.width_space import WidthSpace, width_for
from onnxfold.errors import BudgetError, ConfigError, NothingToFoldError
from onnxfold.graph.files.load import load
from onnxfold.html_report.command_line import command_line
from testing.cells import in_turn
from testing.models import ALL_MODELS, chain_conv, grouped_conv, mlp, residual
from testing.quick import groups_of, quick_fold


def _solve(model: onnx.ModelProto, sparsity: float, round_to: int = 1) -> tuple[list[int], float]:
    view, groups = load(model), groups_of(model)
    cost, before = WeightCost([(view, groups)]), count_parameters(view)
    widths = solve_uniform(WidthSpace(groups, {}, round_to), cost, before, sparsity)
    return widths, 1 - cost(widths) / before


WIDE = {
    "mlp": lambda: mlp(0, widths=(60, 50, 40)),
    "chain_conv": lambda: chain_conv(0, widths=(24, 32, 40)),
    "residual": lambda: residual(0, width=24),
    "grouped_conv": lambda: grouped_conv(0, groups=2, width=32),
}


@pytest.mark.parametrize("name", WIDE)
@settings(max_examples=15)
@given(sparsity=st.floats(0.05, 0.95))
def test_sparsity_is_met_within_a_percentage_point_or_refused(name: str, sparsity: float) -> None:
    model = WIDE[name]()
    view, groups = load(model), groups_of(model)
    cost = WeightCost([(view, groups)])
    most = 1 - cost([g.block_count for g in groups]) / count_parameters(view)
    if sparsity > most + TOLERANCE:
        with pytest.raises(BudgetError, match=f"{most:.3g} is the most"):
            _solve(model, sparsity)
        return
    widths, reached = _solve(model, sparsity)
    assert abs(reached - sparsity) <= TOLERANCE
    assert all(g.block_count <= w <= g.size for g, w in zip(groups, widths, strict=True))
    # One ratio for all, but for rounding and a few single steps that come closer.
    ratio = float(np.median([w / g.size for g, w in zip(groups, widths, strict=True)]))
    assert all(abs(w - ratio * g.size) <= 5 * g.block_count for g, w in zip(groups, widths, strict=True))


@pytest.mark.parametrize(("name", "sparsity"), in_turn(ALL_MODELS, [0.5, 0.1, 0.7, 0.3]))  # the others: mark.long
def test_small_models_say_when_they_cannot(name: str, sparsity: float) -> None:
    """Networks with a handful of channels: the sparsity, or a note, or an error; one ratio for all, but for half."""
    options = {} if sparsity == 0.5 else {"allocation": "uniform", "method": "fold-naive"}
    try:
        report = quick_fold(ALL_MODELS[name](0), sparsity, verify=False, **options).report
    except (BudgetError, NothingToFoldError):
        return
    met = abs(report.sparsity - sparsity) <= TOLERANCE
    assert met or any("whole numbers" in note for note in report.notes)


def test_common_ratio_as_published() -> None:
    """A channel ratio of 0.293 everywhere removes half of the weights of a network that is mostly inner layers."""
    _, reached = _solve(residual(0, width=48), 0.5)
    widths, _ = _solve(residual(0, width=48), 0.5)
    assert reached == pytest.approx(0.5, abs=0.005)
    assert 1 - sum(widths) / sum(g.size for g in groups_of(residual(0, width=48))) == pytest.approx(0.293, abs=0.015)


def test_width_for() -> None:
    (first, second, third) = groups_of(grouped_conv(0, groups=2, width=10))
    assert [width_for(third, r) for r in (0.0, 0.3, 0.5, 0.99)] == [8, 6, 4, 1]
    assert [width_for(first, r) for r in (0.0, 0.3, 0.47, 0.99)] == [20, 14, 10, 2]  # two equal blocks
    assert [width_for(first, r, 4) for r in (0.0, 0.3, 0.6, 0.99)] == [20, 16, 8, 4]
    assert [width_for(first, r, 3) for r in (0.3, 0.6)] == [12, 6]  # multiples of 3 and of two blocks
    assert width_for(third, 0.5, 64) == 4  # not that many channels: no rounding
    assert width_for(second, 1e-9) == 20


@pytest.mark.parametrize("round_to", [1, 2, 4, 8])
@pytest.mark.parametrize("name", WIDE)
def test_round_to(name: str, round_to: int) -> None:
    result = quick_fold(WIDE[name](), channel_ratio=0.37, round_to=round_to, verify=False)
    assert all(g.folded_width % round_to == 0 for g in result.report.groups)
    assert any(g.folded_width < g.width for g in result.report.groups)
    widths, _ = _solve(WIDE[name](), 0.4, round_to)
    assert all(w % round_to == 0 for w in widths)


def test_ratios_fix_groups_by_name_and_glob() -> None:
    model = residual(0, width=24)
    result = quick_fold(model, channel_ratio=0.25, ratios={"conv_3": 0.5, "conv_[01]": 0.0}, verify=False)
    assert {g.name: g.folded_width for g in result.report.groups} == {
        "conv_0": 24, "conv_1": 24, "conv_3": 24, "conv_4": 36
    }  # fmt: skip
    result = quick_fold(model, 0.5, ratios={"conv_3": 0.25}, verify=False)
    assert {g.name: g.folded_width for g in result.report.groups}["conv_3"] == 36
    assert result.report.sparsity == pytest.approx(0.5, abs=TOLERANCE)


def test_any_producer_of_a_group_names_it() -> None:
    """conv_5 adds into the stream that is called after conv_4."""
    result = quick_fold(residual(0), channel_ratio=0.5, keep=["conv_5"], verify=False)
    assert {g.name: g.folded_width for g in result.report.groups}["conv_4"] == 16


def test_keep_wins_over_ratios() -> None:
    model = residual(0)
    groups = groups_of(model)
    fixed = WidthSpace.of(groups, {"*": 0.5}, ["conv_1"], 1).fixed
    assert [fixed[i] for i in range(len(groups))] == [4, 8, 8, 8]
    assert WidthSpace(groups, {1: 8}).uniform(0.25) == [6, 8, 12, 12]


def test_globs_must_match() -> None:
    with pytest.raises(ConfigError, match="'nothing_\\*' matches no fold group"):
        quick_fold(residual(0), ratios={"nothing_*": 0.5})


def test_keeping_everything_is_nothing_to_fold() -> None:
    with pytest.raises(NothingToFoldError):
        quick_fold(residual(0), channel_ratio=0.5, keep=["*"])


def test_out_of_reach() -> None:
    with pytest.raises(BudgetError, match="is the most that the fold groups of this model allow"):
        quick_fold(residual(0), 0.999)


# -- what is said of widths that were given ------------------------------------------------------


def test_ratios_for_all_groups_set_no_goal() -> None:
    """Nobody asked for the default sparsity, so nothing is said to have missed it."""
    for allocation in ("uniform", "global"):
        result = quick_fold(residual(0), ratios={"*": 0.5}, allocation=allocation, verify=False)
        report = result.report
        assert [g.folded_width for g in report.groups] == [g.width // 2 for g in report.groups]
        assert report.sparsity > 0.6
        assert report.requested == "channel ratio 0.5 for '*'"
        assert report.config["sparsity"] is None
        assert not any("instead of" in note for note in report.notes)
        assert "--sparsity" not in command_line(report)


def test_ratios_alone_are_all_that_is_asked_for() -> None:
    report = quick_fold(residual(0, width=24), ratios={"conv_3": 0.25}, verify=False).report
    assert report.requested == "channel ratio 0.25 for 'conv_3'"
    widths = {g.name: (g.width, g.folded_width) for g in report.groups}
    assert widths.pop("conv_3") == (48, 36)
    assert all(width == folded for width, folded in widths.values())


def test_ratios_that_remove_more_than_the_sparsity_are_named_as_the_reason() -> None:
    options = {"ratios": {"conv_[134]": 0.9}, "allocation": "uniform", "verify": False}
    report = quick_fold(residual(0, width=24), 0.5, **options).report
    assert report.sparsity > 0.6
    (note,) = report.notes
    assert "instead of 0.5: the given widths alone remove as much" in note
    (note,) = quick_fold(residual(0, width=24), 0.5, ratios={"*": 0.7}, verify=False).report.notes
    assert "instead of 0.5: the given widths, those of all groups, alone remove as much" in note


def test_what_cannot_be_reached_names_the_widths_that_are_given() -> None:
    with pytest.raises(BudgetError, match="with the widths of 3 of them given"):
        quick_fold(residual(0, width=24), 0.95, ratios={"conv_[134]": 0.1}, verify=False)


def test_min_fidelity_needs_a_group_to_decide_on() -> None:
    with pytest.raises(ConfigError, match="give the widths of all groups"):
        quick_fold(residual(0), min_fidelity=0.9, ratios={"*": 0.5})


def test_rounding_to_more_than_any_group_has_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"round_to=17: no fold group .* the widest, 'conv_3', has 16 channels"):
        quick_fold(residual(0), 0.5, round_to=17)


def test_groups_that_are_too_narrow_to_be_rounded_are_counted() -> None:
    report = quick_fold(residual(0), channel_ratio=0.5, round_to=12, verify=False).report
    assert "2 of 4 groups have no width that is a multiple of 12: they are not rounded" in report.notes
    assert [g.folded_width for g in report.groups if g.width == 16] == [12, 12]
