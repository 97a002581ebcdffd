"""What the errors of groups cost a network."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from onnxfold.channels import find_groups
from onnxfold.cluster.partition import ChannelPartition, mean_partition
from onnxfold.cluster.partitioners import PARTITIONERS
from onnxfold.cluster.task import ComparedGraph, Task, compound_errors
from onnxfold.graph.files.load import load
from testing.models import mlp, random_input
from testing.observing import observed


def test_little_is_lost_as_errors_say() -> None:
    errors = np.array([np.inf, 1.0, 0.01, 0.001, 0.0])
    np.testing.assert_allclose(compound_errors(errors)[2:], errors[2:], rtol=0.02)


def test_groups_in_a_row_keep_the_product_of_what_each_keeps() -> None:
    """Two that lose half each are as bad as one that loses three quarters; sums of errors say worse, by a third."""
    errors = np.array([np.inf, 1.0, 0.75, 0.5, 0.0])
    losses = compound_errors(errors)
    assert 2 * losses[3] == pytest.approx(losses[2], rel=0.02)
    assert losses[1] > 2.5 * losses[2]  # all but nothing left
    assert losses[0] == np.inf


def test_errors_of_several_consumers_are_shared_among_them() -> None:
    """Half of each of two, or of a single one: twice the loss."""
    one, two = np.array([np.inf, 1.0, 0.5, 0.0]), np.array([np.inf, 2.0, 1.0, 0.0])
    np.testing.assert_allclose(compound_errors(two), 2 * compound_errors(one))


def test_nothing_that_can_be_had_costs_nothing() -> None:
    np.testing.assert_array_equal(compound_errors(np.full(3, np.inf)), np.inf)


def test_what_is_seen_of_means_is_that_of_their_matrix() -> None:
    """Also where a channel is dropped."""
    random = np.random.default_rng(0)
    covariance = np.cov(random.standard_normal((40, 6)).T)
    partition = mean_partition(np.array([0, 1, 0, -1, 1, 1]))
    cross, inner = partition.encode_moments(covariance)
    np.testing.assert_allclose(cross, partition.encode @ covariance, atol=1e-12)
    np.testing.assert_allclose(inner, partition.encode @ covariance @ partition.encode.T, atol=1e-12)


@pytest.mark.parametrize("name", ["kmeans", "ward", "top-l2"])
def test_settled_candidates_keep_no_moments_and_choose_the_same(name: str) -> None:
    model = mlp(0, widths=(16, 12))
    view = load(model)
    (group, *_), feeds = find_groups(view).groups, random_input(model, 1, batch=64)

    def made() -> tuple[Task, weakref.ref[object]]:
        (moments, *_) = observed(view, [group], [feeds]).moments
        return Task(ComparedGraph(view, view), group, np.arange(group.size), moments), weakref.ref(moments[0])

    task, seen = made()
    candidates = PARTITIONERS[name].candidates(task)
    del task
    assert seen() is not None
    candidates.settle()
    gc.collect()
    assert seen() is None
    expected = PARTITIONERS[name].candidates(made()[0])
    np.testing.assert_array_equal(candidates.errors, expected.errors)
    for k in (3, 7, group.size):
        found: ChannelPartition = candidates.partition(k)
        np.testing.assert_array_equal(found.labels, expected.partition(k).labels)
