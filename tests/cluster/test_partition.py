"""The algebra of partitions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxfold.cluster.partition import (
    check_clusters,
    mean_partition,
    renumber,
    select_partition,
)

LABELS = st.lists(st.integers(0, 10), min_size=1, max_size=20)
BOUNDED = settings(max_examples=50)


@BOUNDED
@given(labels=LABELS)
def test_encode_after_decode_is_the_identity(labels: list[int]) -> None:
    """P Q = I: what was folded and unfolded folds to itself; Q P averages within clusters."""
    p = mean_partition(labels)
    np.testing.assert_allclose(p.encode @ p.decode, np.eye(p.clusters), atol=1e-12)
    averaged = p.decode @ p.encode
    np.testing.assert_allclose(averaged @ averaged, averaged, atol=1e-12)
    np.testing.assert_allclose(averaged, averaged.T, atol=1e-12)


@BOUNDED
@given(labels=LABELS)
def test_partitions_of_labels_hold_no_matrices(labels: list[int]) -> None:
    """A plan of many wide layers has no room for them; they are the same whenever they are asked for."""
    dropped = np.array([*(-1 if label < 3 else label for label in labels), 3])
    for p in (mean_partition(labels), mean_partition(dropped)):
        assert {name for name, value in vars(p).items() if np.ndim(value) > 1} == set()
        kept = p.labels >= 0
        np.testing.assert_array_equal(p.decode[kept].argmax(axis=1), p.labels[kept])
        np.testing.assert_array_equal(p.decode.sum(axis=1), kept)
        np.testing.assert_allclose(p.encode, (p.decode / p.decode.sum(axis=0)).T)


def test_a_labelling_that_only_drops_is_a_selection() -> None:
    assert mean_partition([3, -1, 0]).only_selects
    assert not mean_partition([3, -1, 3]).only_selects


@BOUNDED
@given(labels=LABELS)
def test_rows_average_and_columns_add_up(labels: list[int]) -> None:
    p = mean_partition(labels)
    np.testing.assert_allclose(p.encode.sum(axis=1), 1.0)
    np.testing.assert_array_equal(p.decode.sum(axis=1), 1.0)
    np.testing.assert_array_equal(p.decode.sum(axis=0), p.cluster_sizes)
    assert p.cluster_sizes.min() >= 1
    assert p.cluster_sizes.sum() == p.size == len(labels)


@BOUNDED
@given(labels=LABELS, shift=st.integers(1, 9))
def test_numbering_does_not_matter(labels: list[int], shift: int) -> None:
    """Clusters are numbered by their first members, which are the representatives, in ascending order."""
    p, q = mean_partition(labels), mean_partition([shift * (11 - v) for v in labels])
    np.testing.assert_array_equal(p.labels, q.labels)
    np.testing.assert_array_equal(p.encode, q.encode)
    np.testing.assert_array_equal(p.representatives, q.representatives)
    assert (np.diff(p.representatives) > 0).all()
    assert [labels.index(v) for v in dict.fromkeys(labels)] == p.representatives.tolist()
    np.testing.assert_array_equal(p.labels[p.representatives], np.arange(p.clusters))
    same = np.equal.outer(np.array(labels), np.array(labels))
    np.testing.assert_array_equal(same, np.equal.outer(p.labels, p.labels))


def test_renumber() -> None:
    labels, first = renumber(np.array([7, 3, 7, 9, 3]))
    assert labels.tolist() == [0, 1, 0, 2, 1]
    assert first.tolist() == [0, 1, 3]


@pytest.mark.parametrize("n", [1, 4])
def test_identity(n: int) -> None:
    p = mean_partition(np.arange(n))
    assert p.is_identity
    np.testing.assert_array_equal(p.encode, np.eye(n))
    np.testing.assert_array_equal(p.decode, np.eye(n))
    assert mean_partition([0] * n).is_identity is (n == 1)


@BOUNDED
@given(n=st.integers(1, 15), data=st.data())
def test_a_selection_keeps_what_it_keeps(n: int, data: st.DataObject) -> None:
    """P and Q are rows and columns of the identity; what is dropped belongs to no cluster and counts nowhere."""
    kept = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=n, unique=True))
    p = select_partition(kept, n)
    assert p.size == n
    assert p.representatives.tolist() == sorted(kept)
    np.testing.assert_array_equal(p.encode @ p.decode, np.eye(p.clusters))
    x = np.arange(1.0, n + 1)
    np.testing.assert_array_equal(p.encode @ x, x[sorted(kept)])
    np.testing.assert_array_equal(p.decode @ p.encode @ x, np.where(np.isin(np.arange(n), kept), x, 0.0))
    np.testing.assert_array_equal(p.labels[p.representatives], np.arange(p.clusters))
    assert (np.delete(p.labels, kept) == -1).all()
    np.testing.assert_array_equal(p.cluster_sizes, np.ones(p.clusters))
    assert p.is_identity is (len(kept) == n)


@pytest.mark.parametrize(
    ("k", "blocks", "message"),
    [(0, 1, "k=0 should be between"), (7, 1, "k=7 should be between"), (3, 2, "k=3 should be a multiple")],
)
def test_impossible_numbers_of_clusters(k: int, blocks: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_clusters(k, 6, blocks)
