"""Clusterings that know the networks: permutations are found, and change nothing; pairs are those that go together."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxfold
from onnxfold.channels import find_groups
from onnxfold.channels.group import put_rows_of, rows_of
from onnxfold.cluster.clusterings.weight_matching import zip_channels
from onnxfold.cluster.partitioners import OF_NETWORKS
from onnxfold.errors import ConfigError
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from testing.models import ALL_MODELS, random_input, run
from tests.merging.test_merge import difference, quick_merge

NAMES = ["chain_conv", "residual", "mlp_bn", "flatten_conv", "concat_net", "depthwise_separable", "grouped_conv"]


def permuted(model: onnx.ModelProto, seed: int = 3) -> onnx.ModelProto:
    """Return an equal network with its channels in another order."""
    view, random = load(model), np.random.default_rng(seed)
    for group in find_groups(view).groups:
        order = np.arange(group.size)
        for block in range(group.block_count):
            units = order if group.blocks is None else np.flatnonzero(group.blocks == block)
            order[units] = random.permutation(units)
        for member in group.members:
            put_rows_of(view, member, rows_of(view, member)[order])
    return to_model(view)


def changed(model: onnx.ModelProto, size: float, seed: int = 4) -> onnx.ModelProto:
    """Return a network whose weights differ a little."""
    random, result = np.random.default_rng(seed), onnx.ModelProto()
    result.CopyFrom(model)
    for tensor in result.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.float32:
            noisy = values * (1.0 + size * random.standard_normal(values.shape))
            tensor.CopyFrom(numpy_helper.from_array(noisy.astype(np.float32), tensor.name))
    return result


@pytest.mark.parametrize("name", NAMES)
def test_weight_matching_finds_a_permutation(name: str) -> None:
    model = ALL_MODELS[name](0)
    other = permuted(model)
    assert difference(model, other) < 1e-5
    options: dict[str, Any] = {"repair": "none", "heads": "average", "verify": False}
    merged = quick_merge([model, other], cluster="matching", **options)
    assert difference(model, merged.model) < 1e-5
    plain = quick_merge([model, other], cluster="by-place", **options)
    assert difference(model, plain.model) > 1e-2


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_channels_does_not_matter_to_weight_matching(name: str) -> None:
    first, second = ALL_MODELS[name](0), ALL_MODELS[name](1)
    options: dict[str, Any] = {"cluster": "matching", "repair": "none", "heads": "average", "verify": False}
    one = quick_merge([first, second], **options)
    two = quick_merge([first, permuted(second)], **options)
    assert difference(one.model, two.model) < 1e-5


@pytest.mark.parametrize("name", ["residual", "mlp"])
def test_channels_in_order_are_the_mean_of_the_weights(name: str) -> None:
    models = [ALL_MODELS[name](seed) for seed in (0, 1)]
    merged = quick_merge(models, cluster="by-place", repair="none", heads="average")
    mean = onnx.ModelProto()
    mean.CopyFrom(models[0])
    norms = {name for node in mean.graph.node if node.op_type == "BatchNormalization" for name in node.input[4:5]}
    for mine, theirs in zip(mean.graph.initializer, models[1].graph.initializer, strict=True):
        a, b = numpy_helper.to_array(mine), numpy_helper.to_array(theirs)
        if a.dtype == np.float32:
            # Variances are merged in the form of the factor that they stand for.
            both = (
                4.0 / (1.0 / np.sqrt(a + 1e-5) + 1.0 / np.sqrt(b + 1e-5)) ** 2 - 1e-5
                if mine.name in norms
                else (a + b) / 2
            )
            mine.CopyFrom(numpy_helper.from_array(both.astype(np.float32), mine.name))
    assert difference(mean, merged.model) < 1e-4


@pytest.mark.parametrize("cluster", ["matching", "by-place"])
def test_between_the_widths_the_likest_pairs_are_merged(cluster: str) -> None:
    first, second = ALL_MODELS["residual"](0), ALL_MODELS["residual"](1)
    for width in (1.25, 1.75):
        result = quick_merge([first, second], width, cluster=cluster, repair="none")
        for one in result.report.merge_map:
            labels = np.array(one.clusters)
            sizes = np.bincount(labels)
            assert sizes.max() == 2
            networks = [set(np.flatnonzero(labels == cluster) // (len(labels) // 2)) for cluster in range(len(sizes))]
            assert [len(found) for found in networks] == sizes.tolist()


def test_three_networks_are_matched_to_the_first() -> None:
    model = ALL_MODELS["residual"](0)
    merged = quick_merge([model, permuted(model, 1), permuted(model, 2)], cluster="matching", repair="none")
    assert difference(model, merged.model) < 1e-5


def test_networks_of_other_widths_are_matched() -> None:
    narrow = onnxfold.fold(ALL_MODELS["residual"](1), channel_ratio=0.4, method="fold-naive").model
    merged = quick_merge([ALL_MODELS["residual"](0), narrow], cluster="matching", repair="none")
    assert np.isfinite(run(merged.model, random_input(narrow, 0))[0]).all()


@pytest.mark.parametrize("cluster", [*OF_NETWORKS])
@pytest.mark.parametrize("repair", ["approximate", "least-squares", "recalibrate"])
def test_every_clustering_goes_with_every_repair(cluster: str, repair: str) -> None:
    model = ALL_MODELS["chain_conv"](0)
    result = quick_merge([model, changed(model, 0.02)], cluster=cluster, repair=repair, heads="average")
    assert difference(model, result.model) < (0.2 if repair == "approximate" else 0.6)  # dead leaves are no data
    assert {(g.cluster, g.repair) for g in result.report.groups} == {(cluster, repair)}


def test_zip_merges_what_is_correlated() -> None:
    likeness = np.full((6, 6), 0.1)
    for a, b, value in [(0, 4, 0.9), (1, 3, 0.8), (2, 5, 0.7)]:
        likeness[a, b] = likeness[b, a] = value
    sources = np.array([0, 0, 0, 1, 1, 1])
    assert zip_channels(likeness, sources, 3).tolist() == [0, 1, 2, 1, 0, 2]
    assert zip_channels(likeness, sources, 5).tolist() == [0, 1, 2, 3, 0, 5]
    likeness[0, 1] = likeness[1, 0] = 0.95  # within a network, as far as its budget goes
    assert zip_channels(likeness, sources, 5).tolist() == [0, 0, 2, 3, 4, 5]


def test_merging_within_a_network_has_a_budget() -> None:
    random, n = np.random.default_rng(0), 32
    likeness = random.uniform(0.0, 0.1, (2 * n, 2 * n))
    likeness[:n, :n] += 0.5  # every pair within the first network is more alike than any other
    likeness = (likeness + likeness.T) / 2
    labels = zip_channels(likeness, np.repeat([0, 1], n), n)
    within = [
        np.ptp(np.flatnonzero(labels == c)) < n and np.flatnonzero(labels == c).max() < n for c in np.unique(labels)
    ]
    sizes = [(labels == c).sum() for c in np.unique(labels)]
    assert sum(s - 1 for s, inside in zip(sizes, within, strict=True) if inside) <= n // 2 * 0.125 + 1
    assert len(np.unique(labels)) == n


@pytest.mark.parametrize("cluster", [*OF_NETWORKS])
def test_one_network_alone_has_no_partners(cluster: str) -> None:
    with pytest.raises(ConfigError, match=f"cluster '{cluster}' is for networks that are merged"):
        onnxfold.fold(ALL_MODELS["mlp"](0), cluster=cluster)
