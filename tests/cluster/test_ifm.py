"""Iterative Feature Merging against a literal replay of the published procedure."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from onnxfold.channels import find_groups
from onnxfold.channels.declarations import Role
from onnxfold.cluster.clusterings.ifm import ifm, merge_features
from onnxfold.cluster.duplicates import find_duplicates
from onnxfold.cluster.partition import mean_partition
from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.files.load import load
from testing.models import ALL_MODELS
from testing.widening.widen import widen

#: Hypothesis draws floats from the ends first; what goes wrong shows in between as well.
SHARES = st.sampled_from([0.0, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0])
BOUNDED = settings(max_examples=40)
Matrix = NDArray[np.float64]


def _published(incoming: Matrix, outgoing: Matrix, k: int) -> tuple[Matrix, Matrix, NDArray[np.int64]]:
    """One pair after the other on the weights themselves: rows (n, d) added up, columns (e, n) averaged by count."""
    rows, columns = list(incoming), list(outgoing.T)
    members = [[i] for i in range(len(rows))]
    while len(rows) > k:
        pairs = [(i, j) for j in range(len(rows)) for i in range(j)]
        i, j = min(pairs, key=lambda p: sum(float(((w[p[0]] - w[p[1]]) ** 2).sum()) for w in (rows, columns)))
        a, b = len(members[i]), len(members[j])
        rows[i] = rows[i] + rows.pop(j)
        columns[i] = (a * columns[i] + b * columns.pop(j)) / (a + b)
        members[i] += members.pop(j)
    labels = np.zeros(len(incoming), np.int64)
    for number, group in enumerate(members):
        labels[group] = number
    return np.array(rows), np.array(columns).T, labels


@BOUNDED
@given(seed=st.integers(0, 2**16), n=st.sampled_from([1, 2, 6, 11, 12]), share=SHARES)
def test_pairs_and_function_are_the_published_ones(seed: int, n: int, share: float) -> None:
    """The same clusters; and averaging rows, adding columns computes what adding rows, averaging columns does."""
    rng = np.random.default_rng(seed)
    incoming, outgoing = rng.standard_normal((n, 4)), rng.standard_normal((3, n))
    k = max(1, round(share * n))
    rows, columns, expected = _published(incoming, outgoing, k)
    labels = merge_features(incoming @ incoming.T, outgoing.T @ outgoing, np.arange(n), k)
    np.testing.assert_array_equal(labels, expected)
    p = mean_partition(labels)
    x = rng.standard_normal((4, 20))
    ours = outgoing @ p.decode @ np.maximum(p.encode @ incoming @ x, 0.0)
    np.testing.assert_allclose(ours, columns @ np.maximum(rows @ x, 0.0), atol=1e-10)


def test_all_weights_of_the_group_are_compared() -> None:
    """Producers and consumers as the graph stores them, neither biases nor BatchNormalization."""
    view = load(ALL_MODELS["chain_conv"](0))
    group = find_groups(view).groups[0]
    incoming = view.weight("conv_0_w").reshape(6, -1).astype(np.float64)
    outgoing = np.swapaxes(view.weight("conv_1_w"), 0, 1).reshape(6, -1).T.astype(np.float64)
    for k in range(1, 7):
        p = ifm(view, group, k, np.arange(group.size))
        np.testing.assert_array_equal(p.labels, _published(incoming, outgoing, k)[2])
        np.testing.assert_allclose(p.encode.sum(axis=1), 1.0)
        np.testing.assert_array_equal(p.decode.sum(axis=1), 1.0)


def test_a_merged_feature_is_compared_by_the_sum_of_its_rows() -> None:
    """Two of three equal features make one that is far from the third: what the published sums do."""
    rows = np.array([[3.0, 0], [3.0, 0], [3.0, 0], [0, 1.0], [0, -1.0]])
    labels = merge_features(rows @ rows.T, np.zeros((5, 5)), np.arange(5), 3)
    assert labels.tolist() == [0, 0, 1, 2, 2]
    given_as_classes = merge_features(rows @ rows.T, np.zeros((5, 5)), np.array([0, 0, 0, 1, 2]), 3)
    assert given_as_classes.tolist() == [0, 0, 0, 1, 2]
    nothing = np.zeros((4, 4))
    assert merge_features(nothing, nothing, np.array([0, 1, 1, 2]), 3).tolist() == [0, 1, 1, 2]


@pytest.mark.parametrize("name", ALL_MODELS)
def test_every_width_of_every_group(name: str) -> None:
    view = load(ALL_MODELS[name](0))
    for group in find_groups(view).groups:
        for k in range(group.block_count, group.size + 1, group.block_count):
            p = ifm(view, group, k, np.arange(group.size))
            assert p.clusters == k
            assert p.is_identity is (k == group.size)
            if group.blocks is not None:
                pure = [len(set(group.blocks[p.labels == c].tolist())) for c in range(k)]
                assert pure == [1] * k
                inside = np.bincount(group.blocks[p.representatives], minlength=group.block_count)
                assert (inside == k // group.block_count).all()


@pytest.mark.parametrize("name", ["chain_conv", "grouped_conv", "residual_plain"])
def test_duplicates_are_merged_before_anything_else(name: str) -> None:
    wide, _ = widen(ALL_MODELS[name](0), 0)
    view = load(wide)
    groups = find_groups(view).groups
    for group, classes in zip(groups, find_duplicates(view, groups), strict=True):
        distinct = len(np.unique(classes))
        assert distinct < group.size
        for k in (distinct - group.block_count, distinct, distinct + group.block_count):
            p = ifm(view, group, k, classes)
            assert p.clusters == k
            if k <= distinct:
                assert all(len(set(p.labels[classes == c].tolist())) == 1 for c in classes)
            if k >= distinct:
                assert all(len(set(classes[p.labels == c].tolist())) == 1 for c in range(k))


@BOUNDED
@given(seed=st.integers(0, 2**16), n=st.sampled_from([1, 2, 12, 24, 25]), share=SHARES)
def test_the_order_of_features_does_not_matter(seed: int, n: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    rows, columns, order = rng.standard_normal((n, 6)), rng.standard_normal((n, 6)), rng.permutation(n)
    k, ones = max(1, round(share * n)), np.arange(n)
    labels = merge_features(rows @ rows.T, columns @ columns.T, ones, k)[order]
    moved = merge_features(rows[order] @ rows[order].T, columns[order] @ columns[order].T, ones, k)
    np.testing.assert_array_equal(np.equal.outer(moved, moved), np.equal.outer(labels, labels))


def test_equal_features() -> None:
    zeros = np.zeros((5, 5))
    assert merge_features(zeros, zeros, np.arange(5), 3).tolist() == [0, 0, 0, 1, 2]
    assert merge_features(zeros, zeros, np.arange(5), 1).tolist() == [0] * 5


def test_impossible_requests() -> None:
    view = load(ALL_MODELS["grouped_conv"](0))
    group = next(g for g in find_groups(view).groups if g.block_count == 2)
    with pytest.raises(ValueError, match="k=3 should be a multiple of the group's 2 blocks"):
        ifm(view, group, 3, np.arange(group.size))
    with pytest.raises(ValueError, match="k=14 should be between 1 and n_points=12"):
        ifm(view, group, 14, np.arange(group.size))
    tensor = group.with_role(Role.CONSUMER)[0].axis.tensor
    view.set_weight(tensor, np.full_like(view.weight(tensor), np.inf))
    with pytest.raises(UnsupportedModelError, match=f"weights of group '{group.name}' are NaN"):
        ifm(view, group, 2, np.arange(group.size))
