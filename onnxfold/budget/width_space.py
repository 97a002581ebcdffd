"""The widths that groups can have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm

from onnxfold.channels.group import FoldGroup
from onnxfold.errors import ConfigError


@dataclass(frozen=True, eq=False)
class WidthSpace:
    """Groups, and which widths each of them can have.

    Parameters
    ----------
    groups : sequence of FoldGroup
        All groups, in order.
    fixed : mapping of int to int
        Widths that are given, by group index.
    round_to : int
        Widths are multiples of this where the group is wide enough.
    """

    groups: Sequence[FoldGroup]
    fixed: Mapping[int, int]
    round_to: int = 1

    @classmethod
    def of(
        cls, groups: Sequence[FoldGroup], ratios: Mapping[str, float], keep: Sequence[str], round_to: int
    ) -> "WidthSpace":
        """Return the space of a request.

        Parameters
        ----------
        groups : sequence of FoldGroup
            All groups.
        ratios : mapping of str to float
            Fraction of the channels to remove, by glob on the names of groups.
        keep : sequence of str
            Globs of groups that keep their width; they win over `ratios`.
        round_to : int
            Widths are multiples of this where the group is wide enough.

        Raises
        ------
        ConfigError
            If a glob matches no group, or no group is wide enough to be rounded.
        """
        if groups and all(width_step(group, round_to) % round_to for group in groups):
            widest = max(groups, key=lambda group: group.size)
            raise ConfigError(
                f"round_to={round_to}: no fold group has a width that is a multiple of it; the widest, "
                f"'{widest.name}', has {widest.size} channels"
            )
        fixed: dict[int, int] = {}
        for glob, ratio in {**ratios, **dict.fromkeys(keep, 0.0)}.items():
            found = [i for i, group in enumerate(groups) if group.matches(glob)]
            if not found:
                raise ConfigError(f"'{glob}' matches no fold group: see the names that 'onnxfold inspect' prints")
            fixed.update({i: width_for(groups[i], ratio, round_to) for i in found})
        return cls(groups, fixed, round_to)

    @cached_property
    def steps(self) -> list[int]:
        """The number that widths are multiples of, per group."""
        return [width_step(group, self.round_to) for group in self.groups]

    @cached_property
    def free(self) -> list[int]:
        """Indices of the groups whose width is not given."""
        return [i for i in range(len(self.groups)) if i not in self.fixed]

    @property
    def not_rounded(self) -> int:
        """Number of groups that have no width that is a multiple of `round_to`."""
        return sum(step % self.round_to > 0 for step in self.steps)

    def uniform(self, ratio: float) -> list[int]:
        """Return the widths at the same channel ratio for every free group."""
        return [self.fixed.get(i, width_for(group, ratio, self.round_to)) for i, group in enumerate(self.groups)]

    @property
    def narrowest(self) -> list[int]:
        """The smallest width of every group."""
        return self.uniform(1.0)


def width_for(group: FoldGroup, ratio: float, round_to: int = 1) -> int:
    """Return the width of a group that loses the fraction `ratio` of its channels.

    Widths are at least one per block, multiples of the number of blocks, and multiples of `round_to`
    where the group has that many channels.
    """
    if ratio <= 0.0:
        return group.size
    step = width_step(group, round_to)
    width = round((1.0 - ratio) * group.size / step) * step
    return min(max(width, step), group.size)


def width_step(group: FoldGroup, round_to: int = 1) -> int:
    """Return the number that widths of a group are multiples of."""
    step = lcm(group.block_count, round_to)
    return step if step <= group.size else group.block_count
