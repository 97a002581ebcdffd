"""Groups that stay equally wide, as one group each for whoever chooses widths.

A choice of widths is a list of numbers. Where groups are tied, there are fewer numbers than groups: the search sees one
group per number, whose error is the sum of theirs, and whose width costs what theirs do together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from onnxfold.budget.costs.lengths import Cost
from onnxfold.budget.objectives import Tradeoff
from onnxfold.budget.requests import Budgets
from onnxfold.budget.width_space import WidthSpace
from onnxfold.channels.group import FoldGroup
from onnxfold.graph.tensors import Matrix


@dataclass(frozen=True)
class TiedWidths:
    """Which groups have one width."""

    numbers: tuple[int, ...]  # for every group, the number of its width

    @classmethod
    def of(cls, groups: Sequence[FoldGroup]) -> "TiedWidths":
        """Return one width per group, and one for all groups with the same tie."""
        known: dict[tuple[str, int], int] = {}
        keys = [("group", i) if group.tie is None else ("tie", group.tie) for i, group in enumerate(groups)]
        return cls(tuple(known.setdefault(key, len(known)) for key in keys))

    @property
    def are_free(self) -> bool:
        """Whether every group has a width of its own."""
        return len(set(self.numbers)) == len(self.numbers)

    def space(self, space: WidthSpace) -> WidthSpace:
        """Return the widths that the groups of each number can have."""
        if self.are_free:
            return space
        first = [self.numbers.index(number) for number in range(len(set(self.numbers)))]
        lossless = [max(space.lossless[i] for i in members) for members in self._members] if space.lossless else ()
        return WidthSpace(
            [space.groups[i] for i in first],
            {number: space.fixed[i] for number, i in enumerate(first) if i in space.fixed},
            space.round_to,
            [space.preferred[i] for i in first] if space.preferred else (),
            lossless,
        )

    def errors(self, errors: Sequence[Matrix]) -> Sequence[Matrix]:
        """Return one error curve per number."""
        if self.are_free:
            return errors
        return [sum((errors[i] for i in members[1:]), start=errors[members[0]]) for members in self._members]

    def cost(self, cost: Cost) -> Cost:
        """Return a cost as a function of one width per number."""
        return cost if self.are_free else cost.renumbered(self.numbers)

    def budgets(self, budgets: Budgets) -> Budgets:
        """Return budgets of such widths."""
        return Budgets(tuple(replace(budget, cost=self.cost(budget.cost)) for budget in budgets.budgets))

    def tradeoff(self, tradeoff: Tradeoff | None) -> Tradeoff | None:
        """Return a trade-off of such widths."""
        if tradeoff is None or self.are_free:
            return tradeoff
        return replace(tradeoff, weights=self.cost(tradeoff.weights), running=self.cost(tradeoff.running))

    def expand_widths(self, widths: Sequence[int]) -> list[int]:
        """Return one width per group."""
        return [widths[number] for number in self.numbers]

    @property
    def _members(self) -> list[list[int]]:
        members: list[list[int]] = [[] for _ in set(self.numbers)]
        for i, number in enumerate(self.numbers):
            members[number].append(i)
        return members
