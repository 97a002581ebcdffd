"""Backward elimination of channels, in the metric of their consumers; docs/mathematics.md has the formulas."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import get_lapack_funcs

from onnxfold.cluster.clusterings.drops import Drops, Kept
from onnxfold.cluster.partition import ChannelPartition, Labels, mean_partition
from onnxfold.cluster.task import Candidates
from onnxfold.graph.tensors import Matrix
from onnxfold.statistics.observe import ConsumerMoments
from onnxfold.statistics.samples import parts, row_parts

#: Factor on the cost of merges, see above; tuned on synthetic inputs and training images.
MERGE_CHARGE = 1.5
#: Added to the diagonal of C, relative to its mean.
RIDGE = 1e-3
#: Groups up to this size lose one channel at a time, in float64, larger ones a fixed portion of what is left.
_ONE_BY_ONE = 256
_PORTIONS = 64
#: Costs that are computed at once: so few that they stay close to a core.
_TILE = 1 << 17
#: Variance of a channel in relation to what the others leave of it (the variance inflation factor), up to which float32
#: will do: its rounding is multiplied by as much.
_MOST_INFLATION = 100.0


@dataclass(eq=False)
class Elimination(Candidates):
    """Every step from n channels downwards."""

    #: Pairs (gone, into): the unit that goes, and the one that it is merged into, -1 where it is dropped.
    steps: tuple[tuple[int, int], ...]
    errors: Matrix  # what was lost at every width, added up
    cluster: str = "elimination"

    def partition(self, k: int) -> ChannelPartition:
        """Return the partition into k clusters."""
        n = len(self.errors) - 1
        labels = np.arange(n)
        for gone, into in self.steps[: n - k]:
            labels[labels == gone] = into
        return mean_partition(labels)


def eliminate(
    moments: Sequence[ConsumerMoments], classes: Labels, blocks: Labels | None = None, *, narrowest: int = 1,
    merges: bool = True,
) -> Elimination:  # fmt: skip
    """Eliminate a group's channels until `narrowest` are left."""
    n = len(classes)
    blocks = np.zeros(n, np.int64) if blocks is None else blocks
    state: _State | Drops = _State(moments, n, merges=merges)
    steps: list[tuple[int, int]] = []
    costs: list[float] = []
    equal = {int(b): _equal_pairs(classes, np.flatnonzero(blocks == b)) for b in np.unique(blocks)}
    while n - len(steps) > narrowest:
        if isinstance(state, _State) and not merges and not any(equal.values()):
            state = Drops(state.units, state.grams, state.precisions)
        for block, pairs in equal.items():
            inside = blocks[state.units] == block
            surplus = int(inside.sum()) - narrowest // len(equal)
            most = surplus if len(equal) == 1 else 1  # blocks become narrower together
            are_equal = bool(pairs)
            at_once = 1 if n <= _ONE_BY_ONE else max(1, len(state.units) // _PORTIONS)
            chosen = pairs[:most] or state.cheapest(inside, min(most, at_once))
            del pairs[:most]
            cost = state.give_up(chosen)
            costs += [0.0 if are_equal else cost / len(chosen)] * len(chosen)
            steps += chosen
    errors = np.full(n + 1, np.inf)
    errors[n] = 0.0
    errors[n - 1 - np.arange(len(costs))] = np.cumsum(costs)
    return Elimination(tuple(steps), errors)


def _equal_pairs(classes: Labels, units: Labels) -> list[tuple[int, int]]:
    """Return the pairs (unit, first unit of its class) of exact duplicates within a block."""
    _, first, place = np.unique(classes[units], return_index=True, return_inverse=True)
    pairs = zip(units.tolist(), units[first[place]].tolist(), strict=True)
    return [(unit, into) for unit, into in pairs if unit != into]


class _State:
    """C^-1 and G of every consumer, over the units that are left."""

    def __init__(self, moments: Sequence[ConsumerMoments], n: int, *, merges: bool = True) -> None:
        self.units = np.arange(n)
        self.merges = merges
        self.share = np.ones(n)
        doubt = max((seen.doubt.part for seen in moments), default=0.0)
        self.merge_charge = MERGE_CHARGE / (1.0 - doubt) ** 2
        self.precisions: list[Kept] = []
        self.grams: list[Kept] = []
        for seen in moments:
            energy = seen.energy
            ridge = RIDGE * np.trace(seen.trusted) / n
            if np.isfinite(energy) and energy > 0.0 and ridge > 0.0:
                self.precisions.append(_inverse(seen.trusted, ridge))
                self.grams.append(seen.gram.astype(self.precisions[-1].dtype))
                self.grams[-1] /= energy

    def cheapest(self, inside: npt.NDArray[np.bool_], count: int) -> list[tuple[int, int]]:
        """Return up to `count` eliminations (gone, into) that share no unit, the cheapest first."""
        places = np.flatnonzero(inside)
        if self.merges:
            best, least = np.empty(len(places), np.int64), np.empty(len(places))
            for rows in parts(len(places), max(_TILE // len(places), 1)):
                costs = self.costs(places, rows)
                best[rows], least[rows] = costs.argmin(axis=1), costs.min(axis=1)
        else:
            best, least = np.arange(len(places)), self.drops(places)
        order = [int(least.argmin())] if count == 1 else np.argsort(least, kind="stable").tolist()
        chosen: list[tuple[int, int]] = []
        used_places: set[int] = set()
        for a in order:
            b = int(best[a])
            if a in used_places or b in used_places:
                continue
            into, gone = sorted(self.units[places[[a, b]]].tolist())
            chosen.append((gone, -1 if a == b else into))
            used_places |= {a, b}
            if len(chosen) == count:
                break
        return chosen

    def drops(self, places: Labels) -> Matrix:
        """Return the cost, (1) in docs/mathematics.md, of every drop."""
        total = np.zeros(len(places))
        for gram, precision in zip(self.grams, self.precisions, strict=True):
            total += gram.diagonal()[places] / precision.diagonal()[places]
        return total

    def costs(self, places: Labels, rows: slice = slice(None)) -> npt.NDArray[np.floating]:
        """Return (1) of merges of some of the places with all, charged, and of their drops where both are one.

        (1) does not hang on the length of u, so u = e_a / s_a - e_b / s_b, with the shares s, stands for a merge.
        """
        own = np.arange(len(places))[rows]
        total = np.zeros((len(own), len(places)), np.result_type(np.float32, *self.grams))
        itself = np.arange(len(own)), own
        for gram, precision in zip(self.grams, self.precisions, strict=True):
            lost, certain = (self._pair_differences(matrix, places, own) for matrix in (gram, precision))
            certain[itself] = 1.0
            np.maximum(certain, np.finfo(certain.dtype).tiny, out=certain)
            with np.errstate(over="ignore"):  # then another pair is cheaper
                total += np.divide(lost, certain, out=lost)
        total *= self.merge_charge
        total[itself] = self.drops(places[own])
        return total

    def _pair_differences(self, matrix: Kept, places: Labels, own: Labels) -> Kept:
        """Return u^T M u of merges of some of the places with all."""
        weight = (1.0 / self.share[places]).astype(matrix.dtype)
        diagonal = matrix.diagonal()[places] * weight**2
        whole = len(places) == len(self.units)
        quadratic = matrix[own[0] : own[-1] + 1] * -2.0 if whole else matrix[np.ix_(places[own], places)] * -2.0
        if (weight != 1.0).any():
            quadratic *= weight
            quadratic *= weight[own, None]
        quadratic += diagonal
        quadratic += diagonal[own, None]
        return np.asarray(quadratic)

    def give_up(self, steps: list[tuple[int, int]]) -> float:
        """Carry C^-1 and G over to what is left after some eliminations; return what they cost together.

        Several units may be merged into another one, which does not go then.
        """
        place = {int(unit): i for i, unit in enumerate(self.units)}
        directions = np.zeros((len(self.units), len(steps)), self.precisions[0].dtype if self.precisions else float)
        merged: list[tuple[int, int]] = []
        clusters: dict[int, list[int]] = {}
        charge = np.ones(len(steps))
        for column, (gone, into) in enumerate(steps):
            a = place[gone]
            directions[a, column] = 1.0
            if into >= 0:
                b = place[into]
                w = self.share[a] / (self.share[a] + self.share[b])
                directions[a, column], directions[clusters.setdefault(b, [b]), column] = 1.0 - w, -w
                self.share[b] += self.share[a]
                clusters[b].append(a)
                merged.append((a, b))
                charge[column] = self.merge_charge
        freed = np.array([place[gone] for gone, _ in steps])
        moved = np.flatnonzero(directions.any(axis=1))
        directions = directions[moved]
        cost = 0.0
        for i, (gram, precision) in enumerate(zip(self.grams, self.precisions, strict=True)):
            # x = (I - U V^T) x + residual: what the channels left predict, and a residual along U.
            certain, gram_u = ((directions.T @ matrix[moved]).T for matrix in (precision, gram))
            inner, lost = np.linalg.inv(directions.T @ certain[moved]), directions.T @ gram_u[moved]
            v = certain @ inner
            cost += float((charge * np.diag(lost @ inner)).sum())
            # G - V G_U^T - G_U V^T + V (U^T G U) V^T, as G - V W^T - W V^T.
            w = gram_u - 0.5 * (v @ lost)
            vw, wv = np.hstack([v, w]), np.hstack([w, v]).T
            for rows in parts(len(gram)):
                gram[rows] -= vw[rows] @ wv
                precision[rows] -= v[rows] @ certain.T
            for matrix in (gram, precision):
                for a, b in merged:
                    matrix[b] += matrix[a]
                    matrix[:, b] += matrix[:, a]
            self.grams[i], self.precisions[i] = (_fill_places(m, freed) for m in (gram, precision))
        self.units, self.share = _fill_places(self.units, freed), _fill_places(self.share, freed)
        return cost


def _fill_places(values: npt.NDArray[Any], freed: Labels) -> npt.NDArray[Any]:
    """Return values, along all axes, without some places, which the last ones take, in the memory of the values."""
    stays = np.ones(len(values), bool)
    stays[freed] = False
    left = int(stays.sum())
    moved, into = left + np.flatnonzero(stays[left:]), np.flatnonzero(~stays[:left])
    for axis in range(values.ndim):
        along = values.swapaxes(0, axis)
        along[into] = along[moved]
        values = values[(slice(None),) * axis + (slice(left),)]
    return values


def _inverse(covariance: Matrix, ridge: float) -> Kept:
    """Return (C + ridge I)^-1; of a large group in float32, unless that is too coarse for what is left."""
    if len(covariance) <= _ONE_BY_ONE:
        matrix = covariance.copy()
        matrix[np.diag_indices_from(matrix)] += ridge
        return np.asarray(np.linalg.inv(matrix), np.float64)
    coarse = _inverse_in_place(covariance.astype(np.float32), ridge)
    if coarse is not None and float((coarse.diagonal() * covariance.diagonal()).max()) <= _MOST_INFLATION:
        return coarse
    del coarse
    fine = _inverse_in_place(covariance.copy(), ridge)
    if fine is None:
        raise np.linalg.LinAlgError("the covariance is not positive")
    return fine


def _inverse_in_place(covariance: Kept, ridge: float) -> Kept | None:
    """Return (C + ridge I)^-1 in the memory of C, by its factor; None where C is not positive in its type."""
    covariance[np.diag_indices_from(covariance)] += covariance.dtype.type(ridge)
    factorise, invert = get_lapack_funcs(("potrf", "potri"), (covariance,))
    # LAPACK reads columns where numpy has rows: of a symmetric matrix that is the same.
    factor, failed = factorise(covariance.T, lower=True, overwrite_a=True)
    if failed:
        return None
    inverse, singular = invert(factor, lower=True, overwrite_c=True)
    if singular:
        return None
    upper: Kept = inverse.T
    for rows in row_parts(len(upper)):
        inside = upper[rows, rows]
        inside += np.triu(inside, 1).T - np.tril(inside, -1)
        upper[rows.stop :, rows] = upper[rows, rows.stop :].T
    return upper
