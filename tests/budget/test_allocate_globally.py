"""Widths from error curves: against all widths there are, and end to end on folded models."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

import onnxfold
from onnxfold.budget.allocate_globally import allocate_globally, convex
from onnxfold.budget.costs.lengths import Cost, Integers
from onnxfold.budget.costs.memory import count_flash, count_ram
from onnxfold.budget.costs.running import count_macs
from onnxfold.budget.costs.weights import count_parameters
from onnxfold.budget.devices import load_device
from onnxfold.budget.objectives import Budget, Budgets
from onnxfold.budget.width_space import WidthSpace, width_step
from onnxfold.channels.group import NO_RULES, NO_SEAM, FoldGroup
from onnxfold.errors import BudgetError, ConfigError, NothingToFoldError
from onnxfold.graph.files.load import load
from testing.models import ALL_MODELS, chain_conv, grouped_conv, mlp, random_input, run
from testing.quick import quick_fold
from tests.budget.folded import graphs_of

Matrix = NDArray[np.float64]


def _curve(random: np.random.Generator, n: int) -> Matrix:
    """Return a convex, falling error curve that ends at 0."""
    drops = np.sort(random.exponential(1.0, n - 1))[::-1] ** 2
    return np.concatenate([[np.inf], np.cumsum(drops[::-1])[::-1], [0.0]])


def _best(curves: list[Matrix], budgets: Budgets) -> float:
    """Return the least error of all widths within the budgets."""
    widths = np.array(list(product(*(range(1, len(c)) for c in curves))))
    error = sum(c[widths[:, i]] for i, c in enumerate(curves))
    fits = np.all([budget.cost.many(widths) <= budget.limit for budget in budgets.budgets], axis=0)
    return float(np.min(np.where(fits, error, np.inf)))


def _narrower(curves: list[Matrix], budgets: Budgets, scale: float) -> Budgets:
    limits = {b.name: int(b.limit * scale) for b in budgets.budgets}
    return Budgets(tuple(type(b)(b.name, limits[b.name], b.unit, b.cost) for b in budgets.budgets))


# -- against all widths ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("fraction", [0.25, 0.5, 0.8])
@pytest.mark.parametrize("limited", [("params",), ("macs",), ("params", "ram"), ("params", "macs", "flash")])
def test_as_good_as_all_widths_tried(limited: tuple[str, ...], fraction: float, seed: int) -> None:
    """No further from the best than one channel of the group where it costs most."""
    sizes = (7, 9, 6)
    graphs = graphs_of(mlp(0, widths=sizes))
    groups = graphs[0][1]
    assert [g.size for g in groups] == list(sizes)
    full, least = list(sizes), [1, 1, 1]
    costs = {b.name: b.cost for b in Budgets.of(graphs, dict.fromkeys(limited, 1)).budgets}
    limits = {n: round(cost(least) + fraction * (cost(full) - cost(least))) for n, cost in costs.items()}
    budgets = Budgets.of(graphs, limits)
    random = np.random.default_rng(seed)
    curves = [_curve(random, n) for n in sizes]
    widths = allocate_globally(WidthSpace(groups, {}), curves, budgets)
    assert budgets.exceeded_budgets(widths) == ()
    error = sum(c[w] for c, w in zip(curves, widths, strict=True))
    step = max(c[max(w - 1, 1)] - c[w] for c, w in zip(curves, widths, strict=True))
    assert error <= _best(curves, budgets) + step + 1e-9
    for i in range(len(sizes)):  # nothing is left lying about
        wider = [w + (j == i) for j, w in enumerate(widths)]
        assert wider[i] > sizes[i] or budgets.exceeded_budgets(wider)


def test_channels_go_where_they_cost_least() -> None:
    graphs = graphs_of(mlp(0, widths=(8, 8)))
    flat, steep = np.array([np.inf, *np.linspace(0.1, 0.0, 8)]), np.array([np.inf, *np.linspace(10.0, 0.0, 8)])
    budgets = Budgets.of(graphs, {"params": 120})
    first = allocate_globally(WidthSpace(graphs[0][1], {}), [flat, steep], budgets)
    second = allocate_globally(WidthSpace(graphs[0][1], {}), [steep, flat], budgets)
    assert first[1] == second[0] == 8
    assert first[0] < 8 > second[1]


@pytest.mark.parametrize("index", [0, 1])
def test_fixed_widths_stay(index: int) -> None:
    graphs = graphs_of(mlp(0, widths=(8, 10)))
    curves = [_curve(np.random.default_rng(i), n) for i, n in enumerate((8, 10))]
    budgets = Budgets.of(graphs, {"params": 140})
    for width in (5, (8, 10)[index]):
        widths = allocate_globally(WidthSpace(graphs[0][1], {index: width}), curves, budgets)
        assert widths[index] == width
        assert budgets.exceeded_budgets(widths) == ()


@pytest.mark.parametrize("round_to", [2, 4])
def test_multiples(round_to: int) -> None:
    graphs = graphs_of(mlp(0, widths=(12, 16)))
    curves = [_curve(np.random.default_rng(i), n) for i, n in enumerate((12, 16))]
    budgets = Budgets.of(graphs, {"params": 200})
    widths = allocate_globally(WidthSpace(graphs[0][1], {}, round_to), curves, budgets)
    assert [w % round_to for w in widths] == [0, 0]
    assert budgets.exceeded_budgets(widths) == ()
    assert widths != [12, 16]


def test_groups_in_blocks_keep_them_equal() -> None:
    graphs = graphs_of(grouped_conv(0))
    groups = graphs[0][1]
    assert max(g.block_count for g in groups) == 2
    random = np.random.default_rng(0)
    curves = [_curve(random, g.size) for g in groups]
    for curve, group in zip(curves, groups, strict=True):
        curve[: group.block_count] = np.inf
    full = Budgets.of(graphs, {"params": 1}).budgets[0].cost([g.size for g in groups])
    widths = allocate_globally(WidthSpace(groups, {}), curves, Budgets.of(graphs, {"params": full // 2}))
    assert [w % width_step(g) for w, g in zip(widths, groups, strict=True)] == [0] * len(groups)


def test_a_request_that_holds_already_changes_nothing() -> None:
    graphs = graphs_of(mlp(0, widths=(8, 10)))
    curves = [_curve(np.random.default_rng(i), n) for i, n in enumerate((8, 10))]
    assert allocate_globally(WidthSpace(graphs[0][1], {}), curves, Budgets.of(graphs, {"params": 10**6})) == [8, 10]
    assert allocate_globally(WidthSpace(graphs[0][1], {}), curves, Budgets.of(graphs, {})) == [8, 10]


@pytest.mark.parametrize(("fixed", "closest"), [({}, [1, 1]), ({0: 8}, [8, 1])])
def test_what_cannot_be_reached_is_told_with_what_can(fixed: dict[int, int], closest: list[int]) -> None:
    graphs = graphs_of(mlp(0, widths=(8, 10)))
    curves = [_curve(np.random.default_rng(i), n) for i, n in enumerate((8, 10))]
    budgets = Budgets.of(graphs, {"params": 10, "macs": 10**6})
    with pytest.raises(BudgetError, match=r"the budget of params cannot be reached") as error:
        allocate_globally(WidthSpace(graphs[0][1], fixed), curves, budgets)
    least = budgets.budgets[0].cost(closest)
    assert f"params {least:,} (limit 10)" in str(error.value)
    assert "macs" in str(error.value)


def test_widths_that_cannot_be_had_are_not_chosen() -> None:
    graphs = graphs_of(mlp(0, widths=(8, 10)))
    curves = [_curve(np.random.default_rng(i), n) for i, n in enumerate((8, 10))]
    curves[0][:5] = np.inf
    budgets = Budgets.of(graphs, {"params": 90})
    widths = allocate_globally(WidthSpace(graphs[0][1], {}), curves, budgets)
    assert widths[0] >= 5
    with pytest.raises(BudgetError):
        allocate_globally(WidthSpace(graphs[0][1], {}), curves, Budgets.of(graphs, {"params": 50}))


def test_hull_of_a_curve() -> None:
    """A plateau in front of a cliff is judged by the cliff."""
    curve = np.array([np.inf, 8.0, 8.0, 3.0, 3.0, 2.0, 0.0])
    hull = convex(curve)
    np.testing.assert_allclose(hull[1:], [8.0, 5.5, 3.0, 2.0, 1.0, 0.0])
    assert hull[0] == np.inf
    for seed in range(5):
        random = np.random.default_rng(seed)
        curve = np.concatenate([[np.inf, np.inf], np.sort(random.exponential(1.0, 12))[::-1]])
        hull = convex(curve)[2:]
        assert (hull <= curve[2:] + 1e-12).all()
        assert (np.diff(hull, 2) >= -1e-9).all()
        assert (hull[0], hull[-1]) == (curve[2], curve[-1])


class _Peak(Cost):
    def many(self, widths: Integers) -> Integers:
        return np.asarray(10 * widths.max(axis=1), np.int64)


class _Weights(Cost):
    def many(self, widths: Integers) -> Integers:
        return np.asarray(widths @ np.array([10, 1]), np.int64)


def test_a_budget_of_several_peaks_is_reached() -> None:
    """RAM is a maximum over time: where two groups share the peak, narrowing either one alone lowers nothing."""
    group = cast(FoldGroup, SimpleNamespace(size=8, block_count=1, blocks=None, rules=NO_RULES, seam=NO_SEAM))
    budget = Budget("ram", 50, "bytes", _Peak())
    curves = [np.array([np.inf, *np.linspace(1.0, 0.0, 8)])] * 3
    assert allocate_globally(WidthSpace([group] * 3, {}), curves, Budgets((budget,))) == [5, 5, 5]


def test_the_last_step_is_not_judged_by_what_is_left_to_save() -> None:
    """A wide step of the better group saves more than is missing; small ones of the other group just fit."""
    group = cast(FoldGroup, SimpleNamespace(size=320, block_count=1, blocks=None, rules=NO_RULES, seam=NO_SEAM))
    cheaper, dearer = (np.array([np.inf, *np.arange(319, -1, -1) * slope]) for slope in (9.0, 1.0))
    budgets = Budgets((Budget("params", 320 * 11 - 1050, "weights", _Weights()),))
    assert allocate_globally(WidthSpace([group] * 2, {}), [cheaper, dearer], budgets) == [320 - 105, 320]


# -- end to end ------------------------------------------------------------------------------------

_COUNTS = {"params": count_parameters, "macs": count_macs, "ram": count_ram, "flash": count_flash}


def _costs(model: onnx.ModelProto) -> dict[str, int]:
    return {name: int(count(load(model)) or 0) for name, count in _COUNTS.items()}


@pytest.mark.parametrize("fraction", [0.5, 0.8])
@pytest.mark.parametrize("limit", _COUNTS)
@pytest.mark.parametrize("name", ["residual", "mlp", "depthwise_separable"])
def test_the_folded_model_is_within_the_limit(name: str, limit: str, fraction: float) -> None:
    model = ALL_MODELS[name](0)
    before = _costs(model)[limit]
    asked = round(before * fraction)
    if limit == "ram" and name == "mlp":
        asked = round(before * 0.9)  # input and output of the network stay
    if limit == "flash":
        asked = round(before * (0.8 + 0.2 * fraction))  # of small models most is structure
    result = quick_fold(model, verify=False, **{f"max_{limit}": asked})
    found = _costs(result.model)[limit]
    assert found <= asked < before
    assert all(np.isfinite(y).all() for y in run(result.model, random_input(model, 0)))
    if limit in ("params", "macs"):
        assert found > 0.6 * asked  # and not much smaller than it has to be


@pytest.mark.parametrize("allocation", ["global", "uniform"])
def test_all_limits_at_once(allocation: str) -> None:
    model = ALL_MODELS["residual"](0)
    before = _costs(model)
    limits = {
        "params": round(before["params"] * 0.7), "macs": round(before["macs"] * 0.6),
        "ram": round(before["ram"] * 0.9), "flash": round(before["flash"] * 0.8),
    }  # fmt: skip
    result = quick_fold(model, allocation=allocation, **{f"max_{n}": v for n, v in limits.items()})
    found = _costs(result.model)
    assert {n for n in limits if found[n] > limits[n]} == set()
    assert found["params"] < before["params"]


@pytest.mark.parametrize("limit", ["params", "flash"])
def test_layers_without_a_bias_leave_room_for_the_one_that_a_repair_adds(limit: str) -> None:
    """In flash, a constant takes more than its numbers."""
    model = mlp(0, widths=(24, 24, 24))
    for node in model.graph.node:
        if node.op_type == "Gemm":
            del node.input[2:]
    before = _costs(model)
    for share in (0.7, 0.75, 0.8):
        asked = round(before[limit] * share)
        assert _costs(quick_fold(model, verify=False, **{f"max_{limit}": asked}).model)[limit] <= asked


def test_fits_a_device() -> None:
    """A network whose activations and weights are too large for the board."""
    device = load_device("arduino-nano-33-ble")
    model = chain_conv(0, widths=(64, 64), bn=True)
    model = _with_image_size(model, 64)
    before = _costs(model)
    assert before["ram"] > device.model_ram_bytes
    result = quick_fold(model, device="arduino-nano-33-ble", samples=2, verify=False)
    after = _costs(result.model)
    assert after["ram"] <= device.model_ram_bytes
    assert after["flash"] <= device.model_flash_bytes
    assert "fits arduino-nano-33-ble" in result.report.requested


def _with_image_size(model: onnx.ModelProto, side: int) -> onnx.ModelProto:
    for dim in model.graph.input[0].type.tensor_type.shape.dim[2:]:
        dim.dim_value = side
    return model


def test_a_device_that_is_large_enough_leaves_nothing_to_do() -> None:
    with pytest.raises(NothingToFoldError, match="is within its limits already"):
        quick_fold(ALL_MODELS["mlp"](0), device="arduino-nano-33-ble")


@pytest.mark.parametrize("allocation", ["global", "uniform"])
@pytest.mark.parametrize("sparsity", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("widths", [(40, 48)])
def test_sparsity_within_one_point(widths: tuple[int, int], sparsity: float, allocation: str) -> None:
    model = mlp(0, widths=widths)
    result = quick_fold(model, sparsity, allocation=allocation)
    left = _costs(result.model)["params"] / _costs(model)["params"]
    assert 1.0 - left == pytest.approx(sparsity, abs=0.01)
    assert result.report.sparsity == pytest.approx(1.0 - left)


def test_sparsity_and_limits_hold_together() -> None:
    model = mlp(0, widths=(40, 48))
    before = _costs(model)
    result = quick_fold(model, 0.3, max_macs=round(0.4 * before["macs"]))
    after = _costs(result.model)
    assert after["macs"] <= 0.4 * before["macs"]
    assert after["params"] <= 0.7 * before["params"]


def test_global_beats_uniform_where_channels_differ_in_worth() -> None:
    """One layer has 30 equal channels of 40: they go first, and nothing is lost."""
    model = mlp(0, widths=(40, 20))
    for tensor in model.graph.initializer:
        if tensor.name in ("gemm_0_w", "gemm_0_b"):
            values = onnx.numpy_helper.to_array(tensor).copy()
            values[10:] = values[9]
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    feeds = random_input(model, 3, batch=64)
    error = {}
    for allocation in ("global", "uniform"):
        folded = quick_fold(model, 0.5, allocation=allocation, samples=128).model
        error[allocation] = float(np.abs(run(folded, feeds)[0] - run(model, feeds)[0]).max())
    assert error["global"] < 1e-3 < error["uniform"]


@pytest.mark.parametrize("least", [0.5, 0.9])
def test_min_fidelity(least: float) -> None:
    model = mlp(0, widths=(24, 24))
    result = quick_fold(model, min_fidelity=least, samples=256)
    note = next(n for n in result.report.notes if "held-out" in n)
    told = float(note.split("%")[0]) / 100
    assert told >= least
    assert 0.0 < result.report.sparsity < 1.0
    assert result.report.requested == f"fidelity of at least {least:g}"


def test_less_fidelity_is_smaller() -> None:
    model = mlp(0, widths=(24, 24))
    sizes = [quick_fold(model, min_fidelity=f, samples=256).report.after.parameters for f in (0.5, 0.95)]
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize("allocation", ["global", "uniform"])
def test_a_search_begins_where_the_first_channel_goes(allocation: str) -> None:
    """In narrow layers a channel is more than the smallest sparsity that is tried."""
    model = mlp(0, widths=(6,))
    for array in model.graph.initializer:  # a bias that normalisation drops is more than that sparsity, too
        if array.name.endswith("_b"):
            array.CopyFrom(numpy_helper.from_array(np.zeros(array.dims, np.float32), array.name))
    report = quick_fold(model, min_fidelity=0.2, samples=64, allocation=allocation).report
    assert 1 <= report.groups[0].folded_width < 6
    assert any("held-out" in note for note in report.notes)


def test_min_fidelity_excludes_other_goals() -> None:
    for goal in ({"sparsity": 0.5}, {"max_params": 100}, {"device": "arduino-nano-33-ble"}, {"channel_ratio": 0.5}):
        with pytest.raises(ConfigError, match="min_fidelity decides how far to fold"):
            onnxfold.fold(mlp(0), min_fidelity=0.9, **cast(dict[str, Any], goal))


@pytest.mark.parametrize(
    ("goal", "error"),
    [
        ({"sparsity": 0.9999}, BudgetError),
        ({"max_params": 1}, BudgetError),
        ({"keep": ["no such node"]}, ConfigError),
        ({"keep": ["no such node"], "min_fidelity": 0.9}, ConfigError),
        ({"channel_ratio": 0.001}, NothingToFoldError),
    ],
)
def test_what_cannot_be_had_is_told_before_anything_runs(
    goal: dict[str, Any], error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unexpected(*_: object, **__: object) -> None:
        raise AssertionError("inputs were generated")

    monkeypatch.setattr("onnxfold.folding.inputs.choose_inputs.model_inputs", unexpected)
    with pytest.raises(error):
        onnxfold.fold(mlp(0), **goal)
