"""Budgets as a user states them: several limits at once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from onnxfold.budget.costs.lengths import Cost, Graphs
from onnxfold.budget.costs.macs import MacsCost
from onnxfold.budget.costs.memory import FlashCost, RamCost
from onnxfold.budget.costs.weights import WeightCost
from onnxfold.errors import BudgetError, ConfigError
from onnxfold.report import milliseconds

#: Name of a budget, as in `--max-NAME`: its cost model and its unit.
COSTS: Mapping[str, tuple[Callable[[Graphs], Cost], str]] = {
    "params": (WeightCost, ""),
    "macs": (MacsCost, ""),
    "ram": (RamCost, "bytes"),
    "flash": (FlashCost, "bytes"),
}


#: Unit of latencies, which are shown in milliseconds.
NANOSECONDS = "ns"


@dataclass(frozen=True)
class Budget:
    """One limit."""

    name: str
    limit: int  # the most that is allowed
    unit: str  # the unit of the limit and of the cost
    cost: Cost

    def describe(self, value: int) -> str:
        """Return a value of this cost and the limit, as text."""
        return f"{self.name} {self._amount(value)} (limit {self._amount(self.limit)})"

    def _amount(self, value: int) -> str:
        if self.unit == NANOSECONDS:
            return f"{milliseconds(value * 1e-9)} ms"
        return f"{value:,} {self.unit}".rstrip()


@dataclass(frozen=True)
class Budgets:
    """Several limits, all of which must hold."""

    budgets: tuple[Budget, ...]

    @classmethod
    def of(cls, graphs: Graphs, limits: Mapping[str, int]) -> "Budgets":
        """Return budgets for limits by name."""
        for name in limits:
            if name not in COSTS:
                raise ConfigError(f"budget '{name}' is not one of: {', '.join(COSTS)}")
        rows = [(name, limit, *COSTS[name]) for name, limit in limits.items()]
        return cls(tuple(Budget(name, limit, unit, cost(graphs)) for name, limit, cost, unit in rows))

    @property
    def limit_time(self) -> bool:
        """Whether one of the limits is of time."""
        return any(budget.unit == NANOSECONDS for budget in self.budgets)

    def exceeded_budgets(self, widths: Sequence[int]) -> tuple[Budget, ...]:
        """Return the budgets that widths exceed."""
        return tuple(budget for budget in self.budgets if budget.cost(widths) > budget.limit)

    def closest(self, widths: Sequence[int]) -> str:
        """Return the costs of widths and the limits of all budgets, as text."""
        return ", ".join(budget.describe(budget.cost(widths)) for budget in self.budgets)

    def unreachable(self, narrowest: Sequence[int], widths: str = "at one channel per group") -> BudgetError:
        """Return the error that says that even the narrowest widths exceed a budget, with the closest values."""
        names = " and ".join(budget.name for budget in self.exceeded_budgets(narrowest))
        return BudgetError(
            f"the budget of {names} cannot be reached: {widths}: {self.closest(narrowest)}; raise the limit, "
            "or run 'onnxfold inspect' for the reasons"
        )


def tightest(*limits: Mapping[str, int]) -> dict[str, int]:
    """Return the smallest limit per name, of the user's own limits and a device's."""
    merged: dict[str, int] = {}
    for name, limit in (pair for mapping in limits for pair in mapping.items()):
        merged[name] = min(limit, merged.get(name, limit))
    return merged
