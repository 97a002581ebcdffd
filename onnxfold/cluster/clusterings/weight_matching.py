"""Channels of several networks: which stands for which by weights, and greedy merges by correlation (ZipIt!).

docs/mathematics.md, "Channels of several networks", has the formulas.
Sources: arXiv 2209.04836, arXiv 2305.03053.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onnxfold.channels.declarations import Role
from onnxfold.channels.group import FoldGroup, Member, members_by_tensor, taken_rows
from onnxfold.cluster.partition import Labels
from onnxfold.graph.tensors import Array, Matrix
from onnxfold.graph.view import GraphView

#: Running statistics belong to data, not to what a channel does.
_COMPARED = (Role.PRODUCER, Role.CONSUMER, Role.BIAS, Role.PARAMETER, Role.SCALE, Role.SHIFT)
_MOST_ROUNDS = 50


@dataclass(frozen=True, eq=False)
class Partners:
    """The channel of the first network that each channel of a group stands for."""

    unit: Labels  # the channel; -1 for those of the first network, and where there is none
    likeness: npt.NDArray[np.float64]  # how like both are, as a cosine; 0 where there is none


def partners_by_place(view: GraphView, groups: Sequence[FoldGroup], sources: Sequence[Labels | None]) -> list[Partners]:
    """Return the channels at the same places of the first network, the first ones first."""
    partners = []
    for group, source in zip(groups, sources, strict=True):
        unit, likeness = np.full(group.size, -1, np.int64), np.zeros(group.size)
        for mine, theirs in _sides(group, source):
            shared = min(len(mine), len(theirs))
            unit[theirs[:shared]] = mine[:shared]
            likeness[theirs[:shared]] = 1.0 - np.arange(shared) / max(shared, 1)
        partners.append(Partners(unit, likeness))
    return partners


def match_weights(view: GraphView, groups: Sequence[FoldGroup], sources: Sequence[Labels | None]) -> list[Partners]:
    """Match the channels of all networks to those of the first one."""
    state = _Matching(view, groups, sources)
    for _ in range(_MOST_ROUNDS):
        changed = [state.solve(g) for g in range(len(groups))]
        if not any(changed):
            break
    return [Partners(state.unit[g], state.likeness(g)) for g in range(len(groups))]


def _sides(group: FoldGroup, source: Labels | None) -> list[tuple[Labels, Labels]]:
    """Return the channels of the first network and of a further one, for each of these and every block."""
    if source is None:
        return []
    return [
        (units[source[units] == 0], units[source[units] == network])
        for network in range(1, int(source.max(initial=0)) + 1)
        for units in group.units_by_block
    ]


@dataclass(eq=False)
class _Matching:
    view: GraphView
    groups: Sequence[FoldGroup]
    sources: Sequence[Labels | None]

    def __post_init__(self) -> None:
        self.on_tensor = members_by_tensor(self.groups)
        self.unit = [np.full(group.size, -1, np.int64) for group in self.groups]

    def solve(self, g: int) -> bool:
        """Assign the channels of a group, all others fixed; return whether anything changed."""
        from scipy.optimize import linear_sum_assignment  # takes a while to import, and only merges need it

        products = self._products(g)
        fresh = np.full(self.groups[g].size, -1, np.int64)
        for mine, theirs in _sides(self.groups[g], self.sources[g]):
            rows, columns = linear_sum_assignment(products[np.ix_(mine, theirs)], maximize=True)
            fresh[theirs[columns]] = mine[rows]
        changed = not np.array_equal(fresh, self.unit[g])
        self.unit[g] = fresh
        return changed

    def likeness(self, g: int) -> npt.NDArray[np.float64]:
        """Return the cosine of every channel and its partner."""
        products, squares = self._products(g), np.zeros(self.groups[g].size)
        for member in self._compared(g):
            rows = taken_rows(self._values(member), member)
            squares += (rows.reshape(len(rows), -1) ** 2).sum(axis=1)
        norms = np.sqrt(np.maximum(squares, np.finfo(np.float64).tiny))
        units = np.flatnonzero(self.unit[g] >= 0)
        cosines = np.zeros(self.groups[g].size)
        partners = self.unit[g][units]
        cosines[units] = products[partners, units] / (norms[partners] * norms[units])
        return cosines

    def _compared(self, g: int) -> list[Member]:
        return [member for member in self.groups[g].members if member.role in _COMPARED]

    def _values(self, member: Member) -> Array:
        return np.asarray(self.view.weight(member.axis.tensor), np.float64)

    def _products(self, g: int) -> Matrix:
        """Return the sum in docs/mathematics.md for all pairs, shape (n, n)."""
        total = np.zeros((self.groups[g].size,) * 2)
        for member in self._compared(g):
            values = self._values(member)
            moved = values
            for h, other in self.on_tensor[member.axis.tensor]:
                if other.axis.axis != member.axis.axis and other.axis.blocks == 1:
                    moved = self._align_columns(moved, h, other)
            rows, partners = (taken_rows(v, member).reshape(self.groups[g].size, -1) for v in (values, moved))
            total += rows @ partners.T
        return total

    def _align_columns(self, values: Array, g: int, member: Member) -> Array:
        """Return a weight whose columns of channels stand where their partners' do; nothing there without partners."""
        axis, unit = member.axis.axis, self.unit[g]
        theirs = np.flatnonzero(unit >= 0)
        first = np.flatnonzero(self.sources[g] == 0) if self.sources[g] is not None else theirs[:0]
        front = np.moveaxis(values, axis, 0)
        moved = front.copy()
        moved[member.positions[first].reshape(-1)] = 0.0
        np.add.at(moved, member.positions[unit[theirs]].reshape(-1), front[member.positions[theirs].reshape(-1)])
        return np.moveaxis(moved, 0, axis)


ALPHA, BETA = 0.3, 0.125


def correlations(covariances: Sequence[Matrix]) -> Matrix:
    """Return the mean correlation of activations over what the consumers read."""
    matrices = []
    for covariance in covariances:
        deviation = np.sqrt(np.maximum(covariance.diagonal(), 0.0))
        scale = np.maximum(deviation * deviation[:, None], 1e-7 * max(float(deviation.max()) ** 2, 1e-30))
        matrices.append(covariance / scale)
    return np.asarray(np.mean(matrices, axis=0))


def zip_channels(likeness: Matrix, sources: Labels, k: int) -> Labels:
    """Merge pairs until k channels are left."""
    n, networks = len(likeness), max(len(np.unique(sources)), 1)
    alike = np.array(likeness, np.float64)
    np.fill_diagonal(alike, -np.inf)
    labels, alive = np.arange(n), np.ones(n, bool)
    budget = np.full(int(sources.max(initial=0)) + 1, int((n - k) // networks * BETA + 1e-4))
    origin = sources.copy()
    for _ in range(n - k):
        place = int(alike.argmax())
        if alike.flat[place] == -np.inf:  # every network has merged as much within itself as it may
            alike = np.where(alive & alive[:, None], likeness, -np.inf)
            np.fill_diagonal(alike, -np.inf)
            place = int(alike.argmax())
        u, v = sorted((place // n, place % n))
        labels[labels == v] = u
        alive[v] = False
        within = origin[u] == origin[v]
        both = np.minimum(alike[u], alike[v]) * ALPHA
        alike[u], alike[:, u] = both, both
        alike[u, u] = -np.inf
        alike[v], alike[:, v] = -np.inf, -np.inf
        if within:
            budget[origin[u]] -= 1
            if budget[origin[u]] <= 0:
                same = np.flatnonzero(origin == origin[u])
                alike[np.ix_(same, same)] = -np.inf
    return labels
