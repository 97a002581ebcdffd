"""From a request to the width of every group."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from onnxfold.budget.allocate import check_reachable, fixed_widths, solve_uniform, uniform_widths, uniform_within
from onnxfold.budget.allocate_globally import allocate_globally
from onnxfold.budget.devices import device_budgets, load_device
from onnxfold.budget.requests import Budgets, tightest
from onnxfold.budget.weights import WeightCost
from onnxfold.channels import FoldGroup
from onnxfold.channels.layers import LINEAR_OPS
from onnxfold.config import LIMITS, FoldConfig
from onnxfold.graph.tensors import Matrix
from onnxfold.graph.view import GraphView
from onnxfold.quantities import parse_bytes, parse_count

_PARSERS = {"params": parse_count, "macs": parse_count, "ram": parse_bytes, "flash": parse_bytes}
_BYTES_PER_WEIGHT = 4


def requested_limits(config: FoldConfig) -> dict[str, int]:
    """Return the limits that the user and the device set, by name; of two the lower one.

    Raises
    ------
    ConfigError
        If a number or a device cannot be read.
    """
    asked = {n: getattr(config, f"max_{n}") for n in LIMITS}
    limits = {name: _PARSERS[name](value) for name, value in asked.items() if value is not None}
    if config.device is None:
        return limits
    return tightest(limits, device_budgets(load_device(config.device)))


@dataclass(frozen=True, eq=False)
class WidthRequest:
    """What widths have to satisfy. It is made before anything is run, so that what cannot be had is told at once.

    Parameters
    ----------
    groups : list of FoldGroup
        The groups of all graphs, in order.
    fixed : dict of int to int
        Widths that are given, by group index.
    budgets : Budgets
        Limits, the sparsity among them.
    round_to : int
        Widths are multiples of this.
    widths : list of int, optional
        The widths, where they follow from the request alone.
    """

    groups: list[FoldGroup]
    fixed: dict[int, int]
    budgets: Budgets
    round_to: int
    widths: list[int] | None = None

    def choose(self, errors: Callable[[], Sequence[Matrix]]) -> list[int]:
        """Return one width per group; error curves, shape (n + 1,) per group, are only asked for where needed."""
        if self.widths is not None:
            return self.widths
        return allocate_globally(self.groups, errors(), self.budgets, self.fixed, self.round_to)


def width_request(
    graphs: Sequence[tuple[GraphView, list[FoldGroup]]], config: FoldConfig, before: int, *, adds_biases: bool
) -> WidthRequest:
    """Return what a configuration asks of the widths of some graphs.

    Parameters
    ----------
    graphs : sequence of (GraphView, list of FoldGroup)
        The graphs, normalised.
    config : FoldConfig
        The request.
    before : int
        Weights of the input model.
    adds_biases : bool
        Whether the repair gives a bias to layers that have none.

    Raises
    ------
    ConfigError
        If a group that is named does not exist, or a number or device cannot be read.
    BudgetError
        If what is asked for cannot be reached; with the closest values that can be.
    """
    groups = [group for _, found in graphs for group in found]
    fixed = fixed_widths(groups, config.ratios, config.keep, config.round_to)
    settled = partial(WidthRequest, groups, fixed, round_to=config.round_to)
    if config.channel_ratio is not None:
        widths = uniform_widths(groups, config.channel_ratio, fixed, config.round_to)
        return settled(budgets=Budgets(()), widths=widths)
    narrowest = uniform_widths(groups, 1.0, fixed, config.round_to)
    limits = requested_limits(config)
    for name, size in (("params", 1), ("flash", _BYTES_PER_WEIGHT)):
        if name in limits and adds_biases:
            limits[name] = max(limits[name] - size * sum(_biases_to_add(view) for view, _ in graphs), 1)
    if config.sparsity is not None:
        cost = WeightCost(graphs)
        check_reachable(groups, cost, before, config.sparsity, fixed, config.round_to)
        if config.allocation == "uniform" and not limits:
            widths = solve_uniform(groups, cost, before, config.sparsity, fixed, config.round_to)
            return settled(budgets=Budgets(()), widths=widths)
        # What is asked for, or what the narrowest widths leave within tolerance.
        limits = tightest(limits, {"params": max(round(before * (1.0 - config.sparsity)), cost(narrowest))})
    budgets = Budgets.of(graphs, limits)
    if config.allocation == "uniform":
        return settled(budgets=budgets, widths=uniform_within(groups, budgets, fixed, config.round_to))
    if budgets.exceeded(narrowest):
        raise budgets.unreachable(narrowest)
    return settled(budgets=budgets)


def _biases_to_add(view: GraphView) -> int:
    """Return how many biases a repair may add: it gives one to layers that have none and no BatchNormalization."""
    total = 0
    for node in view.nodes:
        if node.op_type not in LINEAR_OPS or node.op_type == "MatMul" or (len(node.input) > 2 and node.input[2]):
            continue
        shape = view.shape(node.output[0])
        readers = view.consumers(node.output[0])
        if shape is not None and len(shape) > 1 and not any(r.op_type == "BatchNormalization" for r in readers):
            total += shape[1] or 0
    return total
