"""Resolve a request into the width of every group."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from onnxfold.budget.allocate import TOLERANCE, TiedWidths, require_reachable, solve_uniform, uniform_within
from onnxfold.budget.allocate_globally import allocate_globally
from onnxfold.budget.costs.memory import vector_bytes
from onnxfold.budget.costs.running import LatencyCost
from onnxfold.budget.costs.weights import WeightCost
from onnxfold.budget.devices import device_budgets, load_device
from onnxfold.budget.objectives import NANOSECONDS, Budget, Budgets, Tradeoff, find_objective, tightest
from onnxfold.budget.width_space import WidthSpace, preferred_steps
from onnxfold.channels.group import FoldGroup
from onnxfold.channels.layers import find_layers, is_rescalable
from onnxfold.config import LIMITS, FoldConfig
from onnxfold.config.quantities import parse_bytes, parse_count, parse_latency
from onnxfold.config.values import DEFAULT_OBJECTIVE, DEFAULT_ROUND_TO
from onnxfold.errors import NothingToFoldError, UnsupportedModelError
from onnxfold.graph.tensors import Matrix
from onnxfold.graph.view import GraphView
from onnxfold.latency.table import LatencyTable
from onnxfold.report import ModelSize

_PARSERS = {"params": parse_count, "macs": parse_count, "ram": parse_bytes, "flash": parse_bytes}


def requested_limits(config: FoldConfig) -> dict[str, int]:
    """Return the limits that the user and the device set, by name; of two the lower one."""
    asked = {n: getattr(config, f"max_{n}") for n in LIMITS}
    limits = {name: _PARSERS[name](value) for name, value in asked.items() if value is not None}
    if config.device is None:
        return limits
    return tightest(limits, device_budgets(load_device(config.device)))


@dataclass(frozen=True, eq=False)
class WidthRequest:
    """Conditions on widths. They are checked before any run, so that an impossible request fails at once."""

    space: WidthSpace  # the groups of all graphs, in order, and the widths that they can have
    budgets: Budgets  # limits, the sparsity among them
    config: FoldConfig  # the request as it was made
    widths: list[int] | None = None  # the widths, where they follow from the request alone
    sparsity: float | None = None  # the sparsity that the widths should reach
    tradeoff: Tradeoff | None = None  # what error is traded against besides the budgets
    remarks: tuple[str, ...] = ()  # notes on the request itself
    may_keep: bool = False  # whether all groups may keep their widths, because something else was done

    @property
    def keeps_all(self) -> bool:
        """Whether the request says by itself that every group keeps its width."""
        return self.widths is not None and all(w == g.size for w, g in zip(self.widths, self.space.groups, strict=True))

    def add_lossless(self, lossless: Sequence[int]) -> "WidthRequest":
        """Return the request, with the widths of all groups without exact duplicates."""
        return replace(self, space=replace(self.space, lossless=lossless))

    def notes(self, widths: Sequence[int], reached: float) -> list[str]:
        """Return notes on differences between the chosen widths and the request."""
        notes = [*self.remarks, *self._notes_on_relaxed(widths)]
        round_to, groups, free = self.space.round_to, self.space.groups, self.space.free
        not_rounded = sum(step % round_to > 0 for step in self.space.steps)
        if not_rounded:
            notes.append(
                f"{not_rounded} of {len(groups)} groups have no width that is a multiple of {round_to}: "
                "they are not rounded"
            )
        if self.sparsity is None or abs(reached - self.sparsity) <= TOLERANCE:
            return notes
        whole = "whole numbers" if round_to == 1 else f"whole numbers, multiples of {round_to} where possible"
        why = f"{len(widths)} widths are {whole}, and the search found none that come closer and lose no more"
        if reached > self.sparsity and all(widths[i] == groups[i].size for i in free):
            why = f"given widths{'' if free else ', those of all groups,'} alone remove as much"
        return [*notes, f"reached sparsity {reached:.3f} instead of {self.sparsity:g}: the {why}"]

    def _notes_on_relaxed(self, widths: Sequence[int]) -> list[str]:
        steps = Counter(self.space.relaxed_steps(widths))
        if not steps:
            return []
        what = " and ".join(
            f"{count} to {f'multiples of {step}' if step > 1 else 'any width'}"
            for step, count in sorted(steps.items(), reverse=True)
        )
        return [
            f"{steps.total()} of {len(widths)} groups are relaxed from the widths that a runtime computes fastest, "
            f"{what}: these widths alone miss the goal by over a point"
        ]

    def choose(self, errors: Sequence[Matrix] = ()) -> list[int]:
        """Return one width per group."""
        widths = self.widths
        if widths is None:
            widths = allocate_globally(self.space, errors, self.budgets, self.tradeoff)
        self.require_change(widths)
        return widths

    def require_change(self, widths: Sequence[int]) -> None:
        """Raise NothingToFoldError if every group would keep its width, and this is not what was asked for."""
        keeps = self.may_keep or self.config.channel_ratio == 0.0 or self.config.keeps_widths
        if keeps or any(w < g.size for w, g in zip(widths, self.space.groups, strict=True)):
            return
        within = " and is within its limits already" if self.config.has_limits else "; ask for more"
        raise NothingToFoldError(
            f"nothing to fold: with this request the model keeps the widths of all its {len(self.space.groups)} fold "
            f"groups{within}"
        )


def whole_widths(graphs: Sequence[tuple[GraphView, list[FoldGroup]]], config: FoldConfig) -> WidthRequest:
    """Return the request that keeps all widths."""
    groups = [group for _, members in graphs for group in members]
    sizes = {i: group.size for i, group in enumerate(groups)}
    return WidthRequest(WidthSpace(groups, sizes), Budgets(()), config, list(sizes.values()), may_keep=True)


def width_request(
    graphs: Sequence[tuple[GraphView, list[FoldGroup]]], config: FoldConfig, size: ModelSize, *, adds_biases: bool,
    adds_nodes: bool = False, whole: Sequence[int] = (),
) -> WidthRequest:  # fmt: skip
    """Return the conditions of a configuration on the widths of some graphs."""
    groups = [group for _, members in graphs for group in members]
    preferred: list[tuple[int, ...]] = []
    round_to = config.round_to if isinstance(config.round_to, int) else 1
    if config.round_to == DEFAULT_ROUND_TO and config.is_for_speed:
        block = LatencyTable.from_dict(config.latency_table).block if config.needs_latency else 1
        preferred = [steps for view, members in graphs for steps in preferred_steps(view, members, block)]
    space = WidthSpace.of(groups, config.ratios, config.keep, round_to, preferred, whole)
    if config.channel_ratio is not None or config.keeps_widths:
        return WidthRequest(space, Budgets(()), config, space.uniform(config.channel_ratio or 0.0))
    limits, latency = requested_limits(config), _latency_budget(config, graphs)
    if adds_biases and not limits.keys().isdisjoint(("params", "flash")):
        rooms = _room_for_biases([view for view, _ in graphs], everywhere=adds_nodes)
        limits |= {name: max(limits[name] - room, 1) for name, room in rooms.items() if name in limits}
    sparsity = config.sparsity
    goal = WidthRequest(space, Budgets(()), config)
    if not config.has_limits:
        if sparsity is None and config.ratios:  # they are all that is asked for
            return replace(goal, widths=[space.fixed.get(i, group.size) for i, group in enumerate(groups)])
        goal = replace(goal, sparsity=sparsity)
    if sparsity is not None:
        cost = WeightCost(graphs)
        if config.allocation == "uniform" and not limits and latency is None:
            tied = TiedWidths(groups)
            widths = solve_uniform(tied.space(space), cost.renumbered(tied.numbers), size.parameters, sparsity)
            return replace(goal, widths=tied.expand_widths(widths))
        require_reachable(space, cost, size.parameters, sparsity)
        # The request, or the narrowest widths if they are within tolerance.
        limits = tightest(limits, {"params": max(round(size.parameters * (1.0 - sparsity)), cost(space.narrowest))})
    budgets = Budgets.of(graphs, limits)
    goal = replace(goal, budgets=budgets if latency is None else Budgets((*budgets.budgets, latency)))
    if goal.budgets.exceeded_budgets(space.narrowest):
        raise goal.budgets.unreachable(space.narrowest)
    if config.allocation == "uniform":
        return replace(goal, widths=uniform_within(space, goal.budgets))
    # By default, a limit of memory or latency alone counts, and weights alone do where work is counted by token.
    is_limited = not config.is_for_speed or config.max_latency is not None
    if config.objective == DEFAULT_OBJECTIVE and (is_limited or size.macs_per == "token"):
        return goal
    try:
        tradeoff = Tradeoff.of(find_objective(config.objective), graphs, config.latency_table)
    except UnsupportedModelError as error:
        if config.objective != DEFAULT_OBJECTIVE:
            raise
        return replace(goal, remarks=(f"error is traded against weights alone: {error}",))
    return replace(goal, tradeoff=tradeoff)


def _latency_budget(config: FoldConfig, graphs: Sequence[tuple[GraphView, list[FoldGroup]]]) -> Budget | None:
    if config.max_latency is None:
        return None
    table = LatencyTable.from_dict(config.latency_table)
    seconds = parse_latency(config.max_latency).in_seconds(table.dense_s)
    return Budget("latency", max(round(seconds * 1e9), 1), NANOSECONDS, LatencyCost(graphs, table))


def _room_for_biases(views: Sequence[GraphView], *, everywhere: bool) -> dict[str, int]:
    """Return the room for a repair's biases, by limit: one number per channel of every layer that it gives a bias."""
    room = {"params": 0, "flash": 0}
    for view in views:
        for layer in find_layers(view):
            if (everywhere and not layer.bias) or (layer.lacks_bias and is_rescalable(view, layer)):
                width = layer.width(view)
                room["params"] += width
                room["flash"] += vector_bytes(width, view.weight_type(layer.rows.tensor))
    return room
