"""Budgets that widths must hold, and objectives: what the error of widths is traded against beside them.

How much of a group's error counts depends on what its readers are added to. An error curve is relative to the result of
the layer that reads the group. In a residual network that result is added to a stream that carries as much or more, so
the same relative error does less harm there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from onnxfold.budget.costs.lengths import Cost, Graphs
from onnxfold.budget.costs.memory import FlashCost, RamCost
from onnxfold.budget.costs.running import LatencyCost, MacsCost, TiledMacsCost
from onnxfold.budget.costs.weights import WeightCost
from onnxfold.channels.declarations import Role
from onnxfold.channels.group import FoldGroup
from onnxfold.config.checks import choice
from onnxfold.errors import BudgetError
from onnxfold.graph.tensors import Matrix
from onnxfold.latency.table import LatencyTable
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
        rows = [(name, limit, *COSTS[name]) for name, limit in limits.items()]
        return cls(tuple(Budget(name, limit, unit, cost(graphs)) for name, limit, cost, unit in rows))

    def exceeded_budgets(self, widths: Sequence[int]) -> tuple[Budget, ...]:
        """Return the budgets that widths exceed."""
        return tuple(budget for budget in self.budgets if budget.cost(widths) > budget.limit)

    def unreachable(self, narrowest: Sequence[int]) -> BudgetError:
        """Return the error that says that even the narrowest widths exceed a budget, with the closest values."""
        names = " and ".join(budget.name for budget in self.exceeded_budgets(narrowest))
        costs = ", ".join(budget.describe(budget.cost(narrowest)) for budget in self.budgets)
        return BudgetError(
            f"the budget of {names} cannot be reached: at one channel per group: {costs}; raise the limit, "
            "or run 'onnxfold inspect' for the reasons"
        )


def tightest(own: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Return the smaller limit per name, of the user's own limits and others, such as a device's."""
    return {**own, **other, **{name: min(own[name], other[name]) for name in own.keys() & other.keys()}}


#: What the error of a result counts that is added to one of about the same size.
_ADDED = 0.5


def shares_of_error(groups: Sequence[FoldGroup]) -> list[float]:
    """Return, for every group of a graph, what its error counts: the mean over the layers that read it.

    A layer's result is added to others where several layers produce the same channels.
    """
    producers = [group.by_node[Role.PRODUCER] for group in groups]
    added = {node for nodes in producers if len(nodes) > 1 for node in nodes}
    counts = ([_ADDED if node in added else 1.0 for node in group.by_node[Role.CONSUMER]] for group in groups)
    return [sum(own) / len(own) if own else 1.0 for own in counts]


@dataclass(frozen=True)
class Objective:
    """A row."""

    name: str  # as in `--objective`
    #: Takes the graphs, returns what running them costs as a function of the widths; None where only the budgets
    #: matter.
    cost: Callable[..., Cost] | None = None
    #: Of that cost, allocation tries to remove this much of the fraction of the weights that it removes.
    share: float = 0.0
    #: That fraction of the weights counts up to here: of more weights, no more of that cost goes along.
    up_to: float = 1.0
    #: A fraction of that cost may add this many times the error that the same fraction of the weights adds at most.
    price: float = inf
    #: For the sake of that cost the sum of the relative errors of all groups may become larger by this much.
    added_error: float = inf
    #: The most of a group that a step may take for the sake of that cost: narrow groups lose too much at once.
    largest_cut: float = 1.0
    needs_table: bool = False  # whether the cost takes a table of latencies, too


OBJECTIVES: Mapping[str, Objective] = {
    row.name: row
    for row in (
        Objective("balanced", TiledMacsCost, share=0.75, up_to=0.5, price=8.0, added_error=0.04, largest_cut=0.25),
        Objective("weights"),
        Objective("macs", TiledMacsCost, share=1.0),
        Objective("latency", LatencyCost, share=1.0, needs_table=True),
    )
}


def find_objective(name: str) -> Objective:
    """Return a row of :data:`OBJECTIVES`."""
    return OBJECTIVES[choice("objective", name, list(OBJECTIVES))]


@dataclass(frozen=True, eq=False)
class Tradeoff:
    """The cost of running beside the weights, along a path of ever narrower widths."""

    #: Weights, and what running costs.
    weights: Cost
    running: Cost
    objective: Objective
    share: float  # that of the objective, or a smaller one
    shares_of_error: Sequence[float]  # what the error of every group counts

    @classmethod
    def of(cls, objective: Objective, graphs: Graphs, table: Any = None) -> "Tradeoff | None":
        """Return the trade-off of an objective; None where only the budgets matter.

        `table` holds latencies, as plain values, for an objective that needs them.
        """
        if objective.cost is None:
            return None
        more = (LatencyTable.from_dict(table),) if objective.needs_table else ()
        shares = [share for _, members in graphs for share in shares_of_error(members)]
        return cls(WeightCost(graphs), objective.cost(graphs, *more), objective, objective.share, shares)

    def lead(self, weights: Matrix, running: Matrix) -> Matrix:
        """Return by how much more of the running cost is removed than the share asks for.

        Given are the fractions of both costs that m choices of widths remove, shape (m,).
        """
        return running - self.share * np.minimum(weights, self.objective.up_to)
