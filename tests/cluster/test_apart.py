"""Channels whose mean means nothing: heads of attention are dropped, or merged with exact duplicates."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfold.channels import find_groups
from onnxfold.channels.group import FoldGroup
from onnxfold.cluster.clusterings.elimination import eliminate
from onnxfold.cluster.duplicates import find_duplicates, lossless_width
from onnxfold.cluster.partitioners import PARTITIONERS
from onnxfold.cluster.task import ComparedGraph, Task
from onnxfold.graph.files.load import load
from onnxfold.graph.view import GraphView
from onnxfold.statistics.observe import ConsumerMoments
from testing.rule_models.table import RULE_MODELS

#: Of the rows that average, one averages heads, too.
AVERAGING = [n for n, row in PARTITIONERS.items() if row.averages and not row.needs_moments and n != "kmeans-heads"]


def _heads(model: str) -> tuple[GraphView, FoldGroup]:
    view = load(RULE_MODELS[model]())
    (group,) = (g for g in find_groups(view).groups if "conv_0" in g.nodes)
    assert group.apart
    return view, group


@pytest.mark.parametrize("name", AVERAGING)
def test_clusterings_select_heads(name: str) -> None:
    """Of each group that shares keys and values, the heads with the largest rows stay as they are."""
    view, group = _heads("GroupQueryAttention-cached")
    weights = np.array(view.weight("conv_0_w"))
    scales = np.array([3.0, 1.0, 2.0, 0.5, 4.0, 0.1], np.float32)
    view.set_weight(
        "conv_0_w", weights * (scales / np.linalg.norm(weights.reshape(6, -1), axis=1))[:, None, None, None]
    )
    candidates = PARTITIONERS[name].candidates(Task(ComparedGraph(view, view), group, np.arange(6)))
    partition = candidates.partition(4)
    assert partition.labels.tolist() == [0, -1, 1, 2, 3, -1]
    assert partition.encode.sum(axis=1).tolist() == [1.0] * 4
    assert candidates.cluster == "top-l2"


def test_one_clustering_averages_heads() -> None:
    """Of each group that shares keys and values, the two heads that are alike."""
    view, group = _heads("GroupQueryAttention-cached")
    weights = np.array(view.weight("conv_0_w"))
    weights[2], weights[5] = weights[0] + 0.01, weights[4] + 0.01
    view.set_weight("conv_0_w", weights)
    candidates = PARTITIONERS["kmeans-heads"].candidates(Task(ComparedGraph(view, view), group, np.arange(6)))
    partition = candidates.partition(4)
    assert partition.labels.tolist() == [0, 1, 0, 2, 3, 3]
    assert partition.encode[0].tolist() == [0.5, 0.0, 0.5, 0.0, 0.0, 0.0]
    assert candidates.cluster == "kmeans-heads"


@pytest.mark.parametrize("name", [*AVERAGING, "kmeans-heads"])
def test_equal_heads_are_merged_first(name: str) -> None:
    view, group = _heads("MultiHeadAttention")
    for tensor in view.weights:
        values = np.array(view.weight(tensor))
        if tensor.startswith("conv_") and len(values) == 6:
            values[4] = values[1]
        elif tensor == "bias":
            heads = values.reshape(3, 6, 8)
            heads[:, 4] = heads[:, 1]
            values = heads.reshape(-1)
        elif tensor == "added":
            values[:, 4] = values[:, 1]
        view.set_weight(tensor, values)
    (classes,) = find_duplicates(view, [group])
    task = Task(ComparedGraph(view, view), group, classes)
    assert lossless_width(group, classes) == 5
    assert PARTITIONERS[name].candidates(task).partition(5).labels.tolist() == [0, 1, 2, 3, 1, 4]
    if name in AVERAGING:
        assert sorted(PARTITIONERS[name].candidates(task).partition(3).cluster_sizes.tolist())[-1] <= 2


def test_elimination_drops_different_heads_only() -> None:
    """Units 0 and 1 are almost the same: a merge would be the cheapest step."""
    random = np.random.default_rng(0)
    x = random.normal(size=(4, 500))
    x[1] = x[0] + 0.01 * random.normal(size=500)
    moments = [ConsumerMoments(np.cov(x), np.ones((4, 4)) + np.eye(4))]
    assert any(into >= 0 for _, into in eliminate(moments, np.arange(4)).steps)
    assert all(into < 0 for _, into in eliminate(moments, np.arange(4), merges=False).steps)
    merged = eliminate(moments, np.array([0, 1, 2, 0]), merges=False)
    assert merged.steps[0] == (3, 0)


def test_channels_of_a_product_that_are_no_batches_are_not_apart() -> None:
    view = load(RULE_MODELS["MatMul"]())
    assert not any(g.apart for g in find_groups(view).groups)
