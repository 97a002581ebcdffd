"""Channels that grouped convolutions cut into unequal parts: as many as possible are folded, and parts stay equal."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest

from onnxfold.channels import find_groups
from onnxfold.channels.constraints import equal_cells
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.inspection import inspect_model
from onnxfold.passes.normalize.pipelines import NORMALIZE
from testing.compare import relative_difference
from testing.graph_builder import GraphBuilder
from testing.models import random_input, run
from testing.quick import quick_fold

Array = np.ndarray[Any, np.dtype[Any]]


def _shuffle_unit(groups: int = 3, width: int = 24) -> onnx.ModelProto:
    """ShuffleNetV1's unit: grouped 1x1, shuffle, depthwise, grouped 1x1, added to its input."""
    g = GraphBuilder("shuffle_unit", 0, (3, 8, 8))
    x = g.relu(g.conv("x", width, 1))
    h = g.relu(g.conv(x, width, 1, groups=groups))
    order = np.arange(width).reshape(groups, width // groups).T.reshape(-1)
    h = g.node("Gather", [h, g.constant("order", order)], [width, 8, 8], axis=1)
    h = g.conv(g.conv(h, width, groups=width), width, 1, groups=groups)
    g.output(g.gemm(g.flatten(g.node("GlobalAveragePool", [g.relu(g.add(x, h))], [width, 1, 1])), 5))
    return g.build()


def _lengths(parts: list[tuple[Array, int]], left: Array) -> list[list[int]]:
    return [np.bincount(where[left].reshape(-1), minlength=count).tolist() for where, count in parts]


def _is_even(parts: list[tuple[Array, int]], gone: Array) -> bool:
    return all(len(set(lengths)) == 1 for lengths in _lengths(parts, gone))


@pytest.mark.parametrize("groups", [2, 3, 4, 8])
def test_what_is_behind_a_shuffle_takes_part_as_far_as_it_fills_the_cells(groups: int) -> None:
    width = groups * (groups + 2)
    where = np.arange(width).reshape(groups, -1).T.reshape(-1)  # position behind the shuffle -> before it
    behind = np.argsort(where)
    parts = [(np.arange(width)[:, None] // (groups + 2), groups), (behind[:, None] // (groups + 2), groups)]
    kept, cells = equal_cells(parts)
    assert len(kept) >= groups * groups
    assert len(set(np.bincount(cells).tolist())) == 1
    assert _is_even(parts, kept)


def test_whole_groups_take_part_where_parts_are_equal() -> None:
    kept, cells = equal_cells([(np.arange(12)[:, None] // 3, 4)])
    assert kept.tolist() == list(range(12))
    assert cells.tolist() == (np.arange(12) // 3).tolist()


def test_nothing_takes_part_where_a_part_would_shrink_alone() -> None:
    kept, _ = equal_cells([(np.zeros((4, 1), np.int64), 2)])
    assert not len(kept)


@pytest.mark.parametrize("seed", range(6))
def test_no_set_of_equal_cells_is_larger(seed: int) -> None:
    """Against all sets, and all numbers of channels per cell."""
    random = np.random.default_rng(seed)
    parts = [(random.integers(0, count, (14, 1)), count) for count in (2, 3)]
    kept, _ = equal_cells(parts)
    both = np.concatenate([where for where, _ in parts], axis=1)
    _, cells, sizes = np.unique(both, axis=0, return_inverse=True, return_counts=True)
    best = 0
    for chosen in product([False, True], repeat=len(sizes)):
        size = sizes[np.array(chosen)].min(initial=99)
        first = [np.flatnonzero(cells.reshape(-1) == c)[:size] for c in np.flatnonzero(chosen)]
        if first and _is_even(parts, np.concatenate(first)):
            best = max(best, sum(map(len, first)))
    assert len(kept) == best
    assert not best or _is_even(parts, kept)


def test_the_inner_channels_of_a_unit_are_folded() -> None:
    found = inspect_model(_shuffle_unit())
    (inner,) = [group for group in found.groups if "conv_1" in group.nodes]
    assert (inner.size, inner.block_count) == (18, 6)  # of 24, in six of nine cells, which have 2 or 3
    assert any("would become unequal" in refusal.reason for refusal in found.refusals)


@pytest.mark.parametrize("method", ["fold-ls", "fold-ar", "prune-l2"])
def test_a_folded_unit_keeps_equal_parts(method: str) -> None:
    model = _shuffle_unit()
    folded = quick_fold(model, channel_ratio=0.5, method=method).model
    onnx.checker.check_model(folded, full_check=True)
    convs = [node for node in folded.graph.node if node.op_type == "Conv"]
    weights = {t.name: tuple(t.dims) for t in folded.graph.initializer}
    first, second = (weights[n.input[1]] for n in convs if any(a.name == "group" and a.i == 3 for a in n.attribute))
    assert first[0] == 3 * second[1] == 18  # 6 fewer: one from each of six cells
    for before, after in zip(*(run(m, random_input(model, 0)) for m in (model, folded)), strict=True):
        assert before.shape == after.shape


def test_equal_channels_are_merged_without_loss() -> None:
    """The second of three channels in every cell is made equal to the first."""
    model = _shuffle_unit()
    view = load(model)
    NORMALIZE(view)
    (inner,) = [group for group in find_groups(view).groups if "conv_1" in group.nodes]
    assert inner.blocks is not None
    pairs = [np.flatnonzero(inner.blocks == block) for block in range(6)]
    for member in inner.members:
        if member.role.value == "consumer":
            continue
        values = np.moveaxis(np.array(view.weight(member.axis.tensor)), member.axis.axis, 0)
        for first, second, _ in pairs:
            values[member.positions[second]] = values[member.positions[first]]
        view.set_weight(member.axis.tensor, np.moveaxis(values, 0, member.axis.axis))
    twins = to_model(view)
    feeds = random_input(model, 0)
    result = quick_fold(twins, channel_ratio=0.4, keep=["conv_0"])
    assert [g.folded_width for g in result.report.groups if "conv_1" in g.nodes] == [12]
    assert relative_difference(run(twins, feeds), run(result.model, feeds)) <= 1e-5
