"""From widths to partitions: duplicates first, blocks apart, positions after the fold."""

import numpy as np
import pytest

from onnxfold.channels import FoldGroup, find_groups
from onnxfold.channels.declarations import Axis, Role
from onnxfold.cluster.duplicates import find_duplicates
from onnxfold.cluster.gram import features
from onnxfold.cluster.partition import ChannelPartition, Labels, mean_partition
from onnxfold.cluster.partitioners import PARTITIONERS
from onnxfold.cluster.plan import FoldPlan, plan_folds
from onnxfold.cluster.task import ComparedGraph, Task
from onnxfold.graph.files.load import load
from onnxfold.graph.view import GraphView
from testing.models import ALL_MODELS
from testing.widening.widen import widen


def partition_group(view: GraphView, group: FoldGroup, k: int, classes: Labels) -> ChannelPartition:
    return PARTITIONERS["kmeans"].candidates(Task(ComparedGraph(view, view), group, classes)).partition(k)


@pytest.mark.parametrize("name", ALL_MODELS)
def test_every_width_gives_as_many_clusters(name: str) -> None:
    view = load(ALL_MODELS[name](0))
    for group in find_groups(view).groups:
        for k in range(group.block_count, group.size + 1, group.block_count):
            partition = partition_group(view, group, k, np.arange(group.size))
            assert partition.clusters == k
            if group.blocks is not None:
                inside = [set(partition.labels[group.blocks == b].tolist()) for b in range(group.block_count)]
                assert all(len(clusters) == k // group.block_count for clusters in inside)
                assert not inside[0] & inside[1]


@pytest.mark.parametrize("name", ["chain_conv", "grouped_conv"])
def test_duplicates_are_merged_before_anything_else(name: str) -> None:
    wide, _ = widen(ALL_MODELS[name](0), 0)
    view = load(wide)
    groups = find_groups(view).groups
    for group, classes in zip(groups, find_duplicates(view, groups), strict=True):
        half = group.size // 2
        partition = partition_group(view, group, half, classes)
        np.testing.assert_array_equal(partition.labels, classes)
        # Fewer clusters than classes: classes are merged whole. More: classes are split, never mixed.
        fewer = partition_group(view, group, half - group.block_count, classes)
        assert all(len(set(fewer.labels[classes == c].tolist())) == 1 for c in range(half))
        more = partition_group(view, group, half + group.block_count, classes)
        assert all(len(set(classes[more.labels == c].tolist())) == 1 for c in range(more.clusters))


def test_only_shrinking_groups_are_planned() -> None:
    view = load(ALL_MODELS["residual"](0))
    groups = find_groups(view).groups
    widths = [g.size if i else g.size - 1 for i, g in enumerate(groups)]
    told: list[tuple[str, int, int]] = []
    plan = plan_folds(groups, widths, lambda i, k: mean_partition(np.arange(groups[i].size)), lambda *a: told.append(a))
    assert [g.name for g in plan.groups] == [groups[0].name]
    assert told == [(f"partition {groups[0].name}", 0, 1)]


def test_positions_after_the_fold() -> None:
    """Joined branches: what one loses moves the other."""
    view = load(ALL_MODELS["concat_net"](0))
    chosen = {g.name: g for g in find_groups(view).groups if g.name in ("conv_1", "conv_2")}
    left, right = mean_partition([0, 0, 1, 1, 2, 2]), mean_partition([0, 1, 1, 1, 1, 1, 1, 2])
    plan = FoldPlan((chosen["conv_1"], chosen["conv_2"]), (left, right))
    joined = Axis("conv_3_w", 1)
    assert plan.touches(joined)
    assert not plan.touches(Axis("conv_3_w", 0))
    assert [plan.count_kept(joined, 0, stop) for stop in (0, 1, 2, 6, 8, 14)] == [0, 1, 1, 3, 5, 6]
    assert plan.kept_positions(joined, 14).tolist() == [0, 2, 4, 6, 7, 13]
    members = {m.axis: m for m, _ in plan.members["conv_3_w"]}
    assert set(members) == {joined}
    (second,) = [m for m, p in plan.members["conv_3_w"] if p is right]
    assert plan.fold_member(second, right).positions.tolist() == [[3], [4], [5]]


@pytest.mark.parametrize("with_deviation", [False, True])
def test_features_are_the_published_concatenation(with_deviation: bool) -> None:
    """[W_l | diag(gamma) | diag(1 / sigma) | W_{l+1}^T], the deviations only where rows are not normalised."""
    model = ALL_MODELS["chain_conv"](0)
    view = load(model)
    group = find_groups(view).groups[0]
    blocks = list(features(view, group, with_deviation=with_deviation))
    roles = [Role.PRODUCER, Role.SCALE, *([Role.VARIANCE] if with_deviation else []), Role.CONSUMER]
    assert [role for role, _ in blocks] == roles
    rows = dict(blocks)
    np.testing.assert_array_equal(rows[Role.PRODUCER], view.weight("conv_0_w").reshape(6, -1))
    np.testing.assert_array_equal(rows[Role.SCALE], np.diag(view.weight("bn_0_gamma")))
    np.testing.assert_array_equal(rows[Role.CONSUMER], np.swapaxes(view.weight("conv_1_w"), 0, 1).reshape(6, -1))
    if with_deviation:
        deviation = 1 / np.sqrt(view.weight("bn_0_var") + 1e-5)
        np.testing.assert_allclose(rows[Role.VARIANCE], np.diag(deviation), rtol=1e-6)
