"""Every registered channel rule: channels go through it, any fold of them is a valid model, duplicates are lossless."""

from collections import Counter

import numpy as np
import onnx
import pytest

from onnxfold.channels import find_groups
from onnxfold.channels.context import all_rules, channel_rule, find_rule
from onnxfold.channels.declarations import Axis, Role
from onnxfold.channels.group import FoldGroup
from onnxfold.cluster.partition import ChannelPartition, mean_partition
from onnxfold.cluster.plan import FoldPlan
from onnxfold.folding.open_model import all_groups, open_scopes, refusals_of_file
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.passes.merge.fold_channels import FoldChannels
from onnxfold.passes.normalize.pipelines import NORMALIZE
from testing.compare import relative_difference
from testing.models import ALL_MODELS, random_input, run
from testing.quick import groups_of, quick_fold
from testing.random_graphs.common import UNKNOWN_TO_ONNX
from testing.rule_models.table import BLOCKING, NEEDS_NORMAL_FORM, RULE_MODELS
from testing.widening.widen import widen

MODELS = {**RULE_MODELS, **{name: (lambda build=build: build(0)) for name, build in ALL_MODELS.items()}}


def _check(name: str, model: onnx.ModelProto) -> None:
    if name not in UNKNOWN_TO_ONNX:
        onnx.checker.check_model(model, full_check=True)


def _random_partition(group: FoldGroup, rng: np.random.Generator) -> ChannelPartition:
    """Return a random partition, with equally many clusters in every block and at least one cluster less than units."""
    blocks = np.zeros(group.size, np.int64) if group.blocks is None else group.blocks
    per_block = group.size // group.block_count
    clusters = int(rng.integers(1, per_block))
    labels = np.empty(group.size, np.int64)
    for block in range(group.block_count):
        drawn = np.concatenate([np.arange(clusters), rng.integers(0, clusters, per_block - clusters)])
        labels[blocks == block] = rng.permutation(drawn) + block * clusters
    return mean_partition(labels)


def test_every_rule_is_exercised() -> None:
    seen = set()
    for build in MODELS.values():
        view = load(build())
        for node in view.nodes:
            rule = find_rule(node.domain, node.op_type, view.opset(node.domain))
            seen.add((node.domain, node.op_type, rule.since if rule else None))
    missing = [(domain, r.op_type, r.since) for domain, r in all_rules() if (domain, r.op_type, r.since) not in seen]
    assert not missing


@pytest.mark.parametrize("name", RULE_MODELS)
def test_channels_come_through(name: str) -> None:
    """The channels of the first Conv are read by a layer behind the operator, or end at it with a reason."""
    scopes = open_scopes(load(RULE_MODELS[name]()))
    groups = [g for g in all_groups(scopes) if "conv_0" in g.nodes]
    if name in BLOCKING:
        assert not groups
        (refusal,) = [r for r in refusals_of_file(scopes) if r.axis == "outputs of weight 'conv_0_w' (axis 0)"]
        assert BLOCKING[name] in refusal.reason
        assert name in refusal.reason
    else:
        rows = [m.positions for g in groups for m in g.members if m.axis == Axis("conv_0_w", 0)]
        assert sorted(np.concatenate([r.reshape(-1) for r in rows]).tolist()) == list(range(6))
        assert any(g.with_role(Role.CONSUMER) for g in groups)


@pytest.mark.parametrize("name", MODELS)
def test_any_partition_gives_a_valid_model(name: str) -> None:
    model = MODELS[name]()
    feeds = random_input(model, 0)
    expected = run(model, feeds)
    rng = np.random.default_rng(len(name))
    normal = load(model)
    NORMALIZE(normal)
    analysis = find_groups(normal)
    partitions = tuple(_random_partition(group, rng) for group in analysis.groups)
    plan = FoldPlan(tuple(analysis.groups), partitions)
    FoldChannels(plan, tuple(analysis.counts), tuple(analysis.selects))(normal)
    folded = to_model(normal)
    _check(name, folded)
    for before, after in zip(expected, run(folded, feeds), strict=True):
        assert before.shape == after.shape
        assert np.isfinite(after).all() or not np.isfinite(before).all()
    # One channel is no group any more; a grouped convolution with one channel per group becomes depthwise. Query heads
    # that share one head of keys and values may go by themselves.
    if not any(g.apart and p.clusters == 1 for g, p in zip(analysis.groups, partitions, strict=True)):
        assert not Counter(g.size for g in find_groups(load(folded)).groups) - Counter(p.clusters for p in partitions)


@pytest.mark.parametrize("name", RULE_MODELS)
def test_duplicates_are_lossless(name: str) -> None:
    model = RULE_MODELS[name]()
    if name in NEEDS_NORMAL_FORM:
        view = load(model)
        NORMALIZE(view)
        model = to_model(view)
    feeds = random_input(model, 0)
    expected = run(model, feeds)
    wide, _ = widen(model, 0, per_row=True, order="backward")
    _check(name, wide)
    assert relative_difference(expected, run(wide, feeds)) <= 1e-4
    result = quick_fold(wide, channel_ratio=0.5, method="fold-ar", verify=False)
    assert [g.folded_width for g in result.report.groups] == [g.size for g in groups_of(model)]
    assert relative_difference(expected, run(result.model, feeds)) <= 1e-4


def test_a_second_rule_for_an_operator_version_is_an_error() -> None:
    with pytest.raises(ValueError, match="Pad version 11 already has a channel rule"):
        channel_rule("Pad", since=11)(lambda node: None)


def test_versions_resolve_as_onnx_does() -> None:
    found = [find_rule("", "Pad", version) for version in (7, 10, 11, 17, 26)]
    assert [rule.since if rule else None for rule in found] == [1, 1, 11, 11, 11]
    assert find_rule("ai.onnx", "Pad", 17) is find_rule("", "Pad", 17)
    assert find_rule("com.example", "Pad", 17) is None
