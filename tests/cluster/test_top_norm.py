"""Pruning by the norm of producer rows."""

from typing import Literal

import numpy as np
import pytest

from onnxfold.channels import find_groups
from onnxfold.channels.declarations import Role
from onnxfold.channels.group import FoldGroup
from onnxfold.cluster.clusterings.scores import row_norms, top_norm
from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.files.load import load
from onnxfold.graph.view import GraphView
from testing.models import ALL_MODELS, chain_conv

Order = Literal[1, 2]
both_orders = pytest.mark.parametrize("order", [1, 2])


def _first(name: str) -> tuple[GraphView, FoldGroup]:
    view = load(ALL_MODELS[name](0))
    return view, find_groups(view).groups[0]


@both_orders
def test_largest_filters_stay(order: Order) -> None:
    view, group = _first("chain_conv")
    norms = np.linalg.norm(view.weight("conv_0_w").reshape(6, -1).astype(np.float64), order, axis=1)
    np.testing.assert_allclose(row_norms(view, group, order=order), norms)
    p = top_norm(view, group, 4, order=order)
    assert p.representatives.tolist() == sorted(np.argsort(norms)[2:].tolist())
    np.testing.assert_array_equal(p.encode, np.eye(6)[p.representatives])
    np.testing.assert_array_equal(p.decode, p.encode.T)


def test_the_two_norms_disagree() -> None:
    view, group = _first("chain_conv")
    rows = np.zeros((6, 27), np.float32)
    rows[:, 0] = [0, 0, 5, 0, 0, 0]
    rows[4] = 0.5  # L1 13.5 > 5, L2 2.6 < 5
    view.set_weight("conv_0_w", rows.reshape(6, 3, 3, 3))
    assert top_norm(view, group, 1, order=1).representatives.tolist() == [4]
    assert top_norm(view, group, 1, order=2).representatives.tolist() == [2]


@both_orders
def test_ties_go_to_the_lowest_index(order: Order) -> None:
    view, group = _first("chain_conv")
    view.set_weight("conv_0_w", np.ones_like(view.weight("conv_0_w")))
    assert top_norm(view, group, 4, order=order).labels.tolist() == [0, 1, 2, 3, -1, -1]
    wide = load(chain_conv(0, (40, 8)))
    group = find_groups(wide).groups[0]
    rows = np.ones_like(wide.weight("conv_0_w"))
    rows[::2] *= 2.0
    wide.set_weight("conv_0_w", rows)
    assert top_norm(wide, group, 27, order=order).representatives.tolist() == sorted(
        [*range(0, 40, 2), *range(1, 15, 2)]
    )


@both_orders
def test_all_producers_of_a_stream_count_and_no_consumer(order: Order) -> None:
    view = load(ALL_MODELS["residual"](0))
    group = max(find_groups(view).groups, key=lambda g: len(g.with_role(Role.PRODUCER)))
    producers = group.with_role(Role.PRODUCER)
    assert len(producers) > 1
    rows = [view.weight(m.axis.tensor)[m.positions[:, 0]].reshape(group.size, -1) for m in producers]
    norms = np.linalg.norm(np.concatenate(rows, axis=1).astype(np.float64), order, axis=1)
    np.testing.assert_allclose(row_norms(view, group, order=order), norms)
    before = top_norm(view, group, group.size // 2, order=order)
    for member in group.with_role(Role.CONSUMER):
        values = view.weight(member.axis.tensor)
        view.set_weight(member.axis.tensor, values * np.arange(1, values.shape[1] + 1).reshape(1, -1, 1, 1) ** 3)
    np.testing.assert_array_equal(top_norm(view, group, group.size // 2, order=order).labels, before.labels)


@pytest.mark.parametrize("name", ALL_MODELS)
def test_every_width_of_every_group(name: str) -> None:
    view = load(ALL_MODELS[name](0))
    for group in find_groups(view).groups:
        for k in range(group.block_count, group.size + 1, group.block_count):
            p = top_norm(view, group, k, order=1)
            assert p.clusters == k
            assert p.is_identity is (k == group.size)
            if group.blocks is not None:
                kept = np.bincount(group.blocks[p.representatives], minlength=group.block_count)
                assert (kept == k // group.block_count).all()


def test_impossible_requests() -> None:
    view = load(ALL_MODELS["grouped_conv"](0))
    group = next(g for g in find_groups(view).groups if g.block_count == 2)
    with pytest.raises(ValueError, match="k=3 should be a multiple of the group's 2 blocks"):
        top_norm(view, group, 3, order=1)
    with pytest.raises(ValueError, match="k=0 should be between 1 and n_points=12"):
        top_norm(view, group, 0, order=1)
    tensor = group.with_role(Role.PRODUCER)[0].axis.tensor
    view.set_weight(tensor, np.full_like(view.weight(tensor), np.nan))
    with pytest.raises(UnsupportedModelError, match=f"weights of group '{group.name}' are NaN"):
        top_norm(view, group, 2, order=1)
