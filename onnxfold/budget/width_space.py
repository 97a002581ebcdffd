"""The widths that groups can have, and the steps between them that a runtime computes fast.

These steps are a static table, so the same input gives the same bytes everywhere.

onnxruntime computes the channels of convolutions of images in tiles of 8 or 16, and only where their number is a
multiple of 4 (:mod:`onnxfold.budget.costs.running` has the prices). Matrix products have no such steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm

from onnxfold.channels.declarations import Role
from onnxfold.channels.group import FoldGroup
from onnxfold.channels.layers import is_tiled, linear
from onnxfold.errors import ConfigError
from onnxfold.graph.view import GraphView


@dataclass(frozen=True, eq=False)
class WidthSpace:
    """Groups, and which widths each of them can have."""

    groups: Sequence[FoldGroup]
    fixed: Mapping[int, int]  # widths that are given, by group index
    round_to: int = 1  # widths are multiples of this where the group is wide enough
    #: For every group, the number that its width is a multiple of, then those that it may relax to; the last one is its
    #: number of blocks. Replaces `round_to`, which is 1 then. A group may also keep its width, or just lose its exact
    #: duplicates.
    preferred: Sequence[tuple[int, ...]] = ()
    lossless: Sequence[int] = ()  # the width of every group without exact duplicates, where that is known

    @classmethod
    def of(
        cls, groups: Sequence[FoldGroup], ratios: Mapping[str, float], keep: Sequence[str], round_to: int = 1,
        preferred: Sequence[tuple[int, ...]] = (), whole: Sequence[int] = (),
    ) -> "WidthSpace":  # fmt: skip
        """Return the space of a request."""
        if groups and all(width_step(group, round_to) % round_to for group in groups):
            widest = max(groups, key=lambda group: group.size)
            raise ConfigError(
                f"round_to={round_to}: no fold group has a width that is a multiple of it; the widest, "
                f"'{widest.name}', has {widest.size} channels"
            )
        fixed = {i: groups[i].size for i in whole}
        for glob, ratio in {**ratios, **dict.fromkeys(keep, 0.0)}.items():
            matches = [i for i, group in enumerate(groups) if group.matches(glob)]
            if not matches:
                raise ConfigError(f"'{glob}' matches no fold group: see the names that 'onnxfold inspect' prints")
            ties = {groups[i].rules.tie for i in matches} - {None}
            matches += [i for i, group in enumerate(groups) if group.rules.tie in ties and i not in matches]
            fixed.update({i: _useful_width(groups[i], width_for(groups[i], ratio, round_to)) for i in matches})
        return cls(groups, fixed, round_to, preferred)

    @cached_property
    def steps(self) -> list[int]:
        """The number that widths are multiples of, per group."""
        return [width_step(group, self.round_to) for group in self.groups]

    @cached_property
    def ladders(self) -> Sequence[tuple[int, ...]]:
        """The numbers that widths are multiples of, per group: what is preferred, then ever smaller ones."""
        return self.preferred or [(step,) for step in self.steps]

    @property
    def levels(self) -> int:
        """Number of entries of the longest ladder."""
        return max(map(len, self.ladders), default=1)

    def step(self, i: int, level: int) -> int:
        """Return the number that widths of a group are multiples of, when it is relaxed `level` times."""
        return self.ladders[i][min(level, len(self.ladders[i]) - 1)]

    def narrower(self, i: int, width: int, level: int, fraction: float) -> int:
        """Return the next smaller width of a group, about `fraction` of the group away; itself if there is none."""
        step = self.step(i, level)
        down = max(round(self.groups[i].size * fraction / step), 1) * step
        below = (max(-(-width // step) * step - down, step), *self._exempt(i))
        widest = self.groups[i].seam.widest
        if widest:
            below = tuple(w if w >= self.groups[i].size else min(w, max(widest // step, 1) * step) for w in below)
        return max((w for w in below if w < width), default=width)

    def wider(self, i: int, width: int, level: int) -> int:
        """Return the next larger width of a group; itself if there is none. Parameters as of :meth:`narrower`."""
        step = self.step(i, level)
        above = (_useful_width(self.groups[i], w) for w in (width // step * step + step, *self._exempt(i)) if width < w)
        return min((w for w in above if w <= self.groups[i].size), default=width)

    def _exempt(self, i: int) -> tuple[int, ...]:
        """Return the widths of a group that need not be multiples of anything: without its duplicates, and whole."""
        if not self.preferred:
            return ()
        return (*self.lossless[i : i + 1], self.groups[i].size)

    def relaxed_steps(self, widths: Sequence[int]) -> list[int]:
        """Return, for every group that is not at a preferred width, the step that its width is a multiple of."""
        return [
            next(step for step in ladder if widths[i] % step == 0)
            for i, ladder in enumerate(self.ladders)
            if i not in self.fixed and widths[i] % ladder[0] and widths[i] not in self._exempt(i)
        ]

    @cached_property
    def free(self) -> list[int]:
        """Indices of the groups whose width is not given."""
        return [i for i in range(len(self.groups)) if i not in self.fixed]

    def uniform(self, ratio: float) -> list[int]:
        """Return the widths at the same channel ratio for every free group."""
        return [
            self.fixed.get(i, _useful_width(group, width_for(group, ratio, self.round_to)))
            for i, group in enumerate(self.groups)
        ]

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


def _useful_width(group: FoldGroup, width: int) -> int:
    """Return a width, or the whole one where it would not make the weights fewer."""
    return group.size if group.seam.widest < width < group.size and group.seam.widest else width


def width_step(group: FoldGroup, round_to: int = 1) -> int:
    """Return the number that widths of a group are multiples of."""
    step = lcm(group.block_count, round_to)
    return step if step <= group.size else group.block_count


#: Steps of groups that convolutions of images compute or read: the preferred one, then those that a group relaxes to.
STEPS = (8, 4, 1)
#: Groups of convolutions that have so many channels go in steps of the larger tile: half of a tile of AVX-512 saves no
#: time, and the same accuracy buys more where whole tiles go.
WIDE, WIDE_STEP = 128, 16


def preferred_steps(view: GraphView, groups: Sequence[FoldGroup], block: int = 1) -> list[tuple[int, ...]]:
    """Return the steps of every group of a graph: the preferred one first, then ever smaller ones.

    A step is a multiple of the number of blocks, and never larger than the group.
    """
    ladders = []
    for group in groups:
        keys = (key for role in (Role.PRODUCER, Role.CONSUMER) for key in group.by_node[role])
        operators = (linear(view, view.producer(key)) for key in keys)
        tiled = any(operator is not None and is_tiled(view, operator) for operator in operators)
        tile = max(block, WIDE_STEP if group.size >= WIDE else 1)
        wanted = (*((tile,) if tile > STEPS[0] else ()), *STEPS) if tiled else (1,)
        steps = dict.fromkeys(lcm(step, group.block_count) for step in wanted)
        ladders.append(tuple(step for step in steps if step <= group.size))
    return ladders
