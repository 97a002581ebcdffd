"""Budgets as users state them."""

import pytest

from onnxfold.budget.objectives import COSTS, Budgets, tightest
from onnxfold.config.quantities import parse_bytes, parse_count
from onnxfold.errors import BudgetError, ConfigError
from testing.models import mlp
from tests.budget.folded import graphs_of


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("262144", 262144), (4096, 4096), ("256K", 262144), ("256k", 262144), ("256 KiB", 262144), ("256kB", 262144),
        ("1M", 1048576), ("1.5MB", 1572864), ("1MiB", 1048576), ("2G", 2 << 30), ("2GiB", 2 << 30), ("100B", 100),
        (".5K", 512),
    ],
)  # fmt: skip
def test_bytes(text: str | int, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("1000", 1000), (7, 7), ("250K", 250_000), ("1.5M", 1_500_000), ("2G", 2 * 10**9), ("2b", 2 * 10**9)],
)
def test_counts(text: str | int, value: int) -> None:
    assert parse_count(text) == value


@pytest.mark.parametrize(
    "text", ["", "K", "-5K", "0", 0, -3, "1.2.3M", "5 apples", "1e3x", "0.1", "nan", "inf", "12 K B"]
)
def test_nonsense(text: str | int) -> None:
    with pytest.raises(ConfigError, match="is not bytes, for example") as error:
        parse_bytes(text)
    assert f"'{text}'" in str(error.value)
    with pytest.raises(ConfigError, match="is not a count, for example"):
        parse_count(text)


def test_units_of_bytes_are_no_counts() -> None:
    with pytest.raises(ConfigError):
        parse_count("5KiB")


def test_several_limits_at_once() -> None:
    graphs = graphs_of(mlp(0, widths=(12, 10)))
    budgets = Budgets.of(graphs, {"params": 200, "macs": 240, "ram": 1000})
    assert [b.name for b in budgets.exceeded_budgets([12, 10])] == ["params", "macs"]
    shown = [budget.describe(budget.cost([12, 10])) for budget in budgets.budgets]
    assert shown == ["params 281 (limit 200)", "macs 254 (limit 240)", "ram 88 bytes (limit 1,000 bytes)"]
    assert [b.name for b in budgets.exceeded_budgets([11, 10])] == ["params"]
    assert budgets.exceeded_budgets([7, 7]) == ()
    assert set(COSTS) == {"params", "macs", "ram", "flash"}
    assert Budgets.of(graphs, {}).exceeded_budgets([12, 10]) == ()


def test_out_of_reach_gives_the_closest_values() -> None:
    budgets = Budgets.of(graphs_of(mlp(0)), {"params": 1000, "macs": 5, "flash": 100})
    error = budgets.unreachable([1, 1])
    assert isinstance(error, BudgetError)
    assert error.exit_code == 1
    assert str(error).startswith(
        "the budget of macs and flash cannot be reached: at one channel per group: params 20 (limit 1,000), "
        "macs 13 (limit 5), flash 3,280 bytes (limit 100 bytes); "
    )
    assert "\n" not in str(error)


def test_the_tightest_of_user_and_device() -> None:
    assert tightest({"ram": 10, "params": 3}, {"ram": 8, "flash": 9}) == {"ram": 8, "params": 3, "flash": 9}
