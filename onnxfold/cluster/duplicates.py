r"""Exact duplicates: channels that compute the same, found for all groups at once.

Two channels are exact duplicates when their producer rows, biases and normalisation parameters are
equal *after* the columns of duplicate input channels have been added up; what their consumers do with
them does not matter. This is the coarsest such equivalence ("exact lumping" of the network), found by
refinement: start with every group as one class and split classes whose members differ until nothing
splits. Each round compares one random projection per channel, with equal random numbers for columns
of one class, so a round costs one pass over the weights.

Where a normalisation takes mean and variance over channels, a merge of duplicates keeps these only if every channel
that is left stands for equally many. So classes of such a group are cut into parts of d channels, d the largest number
that divides the sizes of all classes.
"""

import ml_dtypes
import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from onnxfold.channels.declarations import Role
from onnxfold.channels.group import FoldGroup, Member, members_by_tensor, move_to_front
from onnxfold.cluster.gram import Vector
from onnxfold.cluster.partition import Labels, renumber
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView

#: Rounding of the stored weights, in units of their machine epsilon, that still counts as equal.
_EPSILONS = 4.0
_ARITHMETIC = 64 * float(np.finfo(np.float64).eps)
_MAX_ROUNDS = 64
#: Projections per round, and of types so coarse that different channels often agree in two of them.
_PROJECTIONS, _COARSE_PROJECTIONS, _COARSE_EPSILON = 2, 8, 1e-4
_PART_ELEMENTS = 1 << 22


def find_duplicates(view: GraphView, groups: list[FoldGroup], *, seed: int = 0) -> list[Labels]:
    """Return, per group, the class of exact duplicates of each unit."""
    labels = [np.zeros(g.size, np.int64) if g.blocks is None else renumber(g.blocks)[0] for g in groups]
    for round_number in range(_MAX_ROUNDS):
        projected = _project(view, groups, labels, np.random.default_rng([seed, round_number]))
        refined = [_split(old, *new) for old, new in zip(labels, projected, strict=True)]
        stable = all(a.max() == b.max() for a, b in zip(labels, refined, strict=True))
        labels = refined
        if stable:
            break
    else:
        return [np.arange(g.size) for g in groups]
    return [_cut_evenly(label) if group.rules.averaged else label for group, label in zip(groups, labels, strict=True)]


def _cut_evenly(classes: Labels) -> Labels:
    """Return classes of equal sizes, as large as possible, each inside one of the given ones."""
    sizes = np.bincount(classes)
    order = np.argsort(classes, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return renumber(classes * len(classes) + rank // np.gcd.reduce(sizes))[0]


def is_lossless(group: FoldGroup, width: int, classes: Labels) -> bool:
    """Whether a fold of a group to a width needs to merge nothing but exact duplicates, and changes nothing."""
    least = lossless_width(group, classes)
    return width >= least and (not group.rules.averaged or width in (least, group.size))


def lossless_width(group: FoldGroup, classes: Labels) -> int:
    """Return the least width at which every cluster holds equal channels only; blocks stay equally wide."""
    return group.block_count * max(len(np.unique(classes[units])) for units in group.units_by_block)


def _project(
    view: GraphView, groups: list[FoldGroup], labels: list[Labels], random: np.random.Generator
) -> list[tuple[Vector, Vector]]:
    """Return per group projections of shape (n, columns) and the rounding that each may have."""
    draws = [random.standard_normal((label.max() + 1, 64)) for label in labels]
    columns: list[list[Vector]] = [[] for _ in groups]
    scales: list[list[Vector]] = [[] for _ in groups]
    for tensor, members in members_by_tensor(groups).items():
        values = view.weight(tensor)
        epsilon = _epsilon(values.dtype)
        tolerance = _EPSILONS * epsilon
        for g, member in ((g, m) for g, m in members if m.role is not Role.CONSUMER):
            others = [(h, m) for h, m in members if m.axis != member.axis]
            for _ in range(_PROJECTIONS if epsilon < _COARSE_EPSILON else _COARSE_PROJECTIONS):
                vectors = _other_axes(values, member, others, labels, draws, random)
                rows, norms = _contract_in_parts(values, member, vectors)
                slots = random.standard_normal(member.positions.shape[1])
                columns[g].append(rows[member.positions] @ slots)
                scales[g].append(tolerance * np.linalg.norm(norms[member.positions] * slots, axis=1))
    return [(np.stack(c, axis=1), np.stack(s, axis=1)) for c, s in zip(columns, scales, strict=True)]


def _other_axes(
    values: Array, member: Member, others: list[tuple[int, Member]], labels: list[Labels], draws: list[Vector],
    random: np.random.Generator,
) -> dict[int, tuple[int, Vector]]:  # fmt: skip
    """Return axis -> (blocks, random vector along it), equal on columns of one class."""
    vectors = {}
    for axis in (axis for axis in range(values.ndim) if axis != member.axis.axis):
        blocks = next((m.axis.blocks for _, m in others if m.axis.axis == axis), 1)
        vector = random.standard_normal(values.shape[axis] * blocks)
        for h, m in others:
            if m.axis.axis == axis:
                slots = draws[h][:, np.arange(m.positions.shape[1]) % draws[h].shape[1]]
                spread = random.uniform(0.5, 1.5, m.positions.shape[1])  # bounded, as rounding is
                vector[m.positions] = slots[labels[h]] * spread
        vectors[axis] = (blocks, vector)
    return vectors


def _contract_in_parts(values: Array, member: Member, vectors: dict[int, tuple[int, Vector]]) -> tuple[Vector, Vector]:
    """Contract a large weight in slices of axis 0, so that its float64 copy never exists as a whole."""
    rows = max(1, _PART_ELEMENTS // max(1, values[0].size))
    packed = member.axis.blocks > 1 or any(blocks > 1 for blocks, _ in vectors.values())
    if packed or len(values) <= rows:
        return _contract(np.asarray(values, np.float64), member, dict(vectors))
    parts = []
    for start in range(0, len(values), rows):
        part = {a: (b, v[start : start + rows] if a == 0 else v) for a, (b, v) in vectors.items()}
        parts.append(_contract(np.asarray(values[start : start + rows], np.float64), member, part))
    projections, norms = zip(*parts, strict=True)
    if member.axis.axis == 0:
        return np.concatenate(projections), np.concatenate(norms)
    return np.sum(projections, axis=0), np.linalg.norm(norms, axis=0)


def _contract(values: Array, member: Member, vectors: dict[int, tuple[int, Vector]]) -> tuple[Vector, Vector]:
    """Contract all axes but the member's with their vectors; return that and the norm of each entry's rows."""
    front = move_to_front(values, member.axis.axis, member.axis.blocks)
    norms = np.linalg.norm(front.reshape(len(front), -1), axis=1)
    for axis, (blocks, vector) in vectors.items():
        if blocks > 1:  # each block of axis 0 has columns of its own
            per_entry = np.repeat(vector.reshape(blocks, -1), values.shape[0] // blocks, axis=0)
            values = values * np.expand_dims(per_entry, tuple(i for i in range(1, values.ndim) if i != axis))
            vectors[axis] = (1, np.ones(values.shape[axis]))
    if member.axis.blocks > 1:  # axis 0 is split between the member's blocks
        values = values * vectors[0][1].reshape(-1, *[1] * (values.ndim - 1))
        vectors[0] = (1, np.ones(values.shape[0] // member.axis.blocks))
    front = move_to_front(values, member.axis.axis, member.axis.blocks)
    for axis in sorted(vectors, reverse=True):
        # Axes behind the member's keep their number; those before it moved back by one.
        front = np.tensordot(front, vectors[axis][1], axes=([axis if axis > member.axis.axis else axis + 1], [0]))
    return front, norms


def _split(old: Labels, projected: Vector, tolerance: Vector) -> Labels:
    """Split classes whose members' projections differ by more than rounding: by column, at gaps, then by pairs."""
    labels = old
    for column in range(projected.shape[1]):
        order = np.lexsort((projected[:, column], labels))
        value, bound, group = projected[order, column], tolerance[order, column], labels[order]
        gap = np.diff(value) > np.maximum(bound[1:], bound[:-1])
        cut = np.concatenate([[False], gap | (np.diff(group) > 0)])
        fresh = np.empty(len(labels), np.int64)
        fresh[order] = np.cumsum(cut)
        labels = fresh
    order = np.argsort(labels, kind="stable")
    next_label = len(labels)
    for members in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1):
        if len(members) > 2:
            parts = _components(projected[members], tolerance[members])
            labels[members] = next_label + parts
            next_label += len(members)
    return renumber(labels)[0]


def _components(values: Vector, bounds: Vector) -> Labels:
    """Return the connected components of points, two being connected that are within bounds in every column."""
    order = np.argsort(values[:, 0], kind="stable")
    v, b, n = values[order], bounds[order], len(values)
    parts = np.arange(n)
    for step in range(1, n):  # pairs by their distance in the order of the first column
        gaps = np.abs(v[step:] - v[:-step])
        if gaps[:, 0].min() > b[:, 0].max():
            break
        near = np.flatnonzero((gaps <= np.maximum(b[step:], b[:-step])).all(axis=1))
        a, c = parts[near], parts[near + step]
        if (a != c).any():
            edges = coo_array((np.ones(len(a), np.int8), (a, c)), shape=(n, n))
            parts = connected_components(edges, directed=False)[1][parts]
            if (parts == parts[0]).all():
                break
    labels = np.empty(n, np.int64)
    labels[order] = parts
    return labels


def _epsilon(dtype: np.dtype[np.generic]) -> float:
    """Return the relative spacing of a type, but not less than what adding up in float64 loses.

    Integers and booleans are not rounded.
    """
    if dtype.kind in "biu":
        return _ARITHMETIC
    return max(_ARITHMETIC, float(ml_dtypes.finfo(dtype).eps))  # type: ignore[no-untyped-call]
