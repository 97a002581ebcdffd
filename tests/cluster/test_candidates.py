"""What the errors of groups cost a network."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfold.cluster.candidates import compounded


def test_little_is_lost_as_errors_say() -> None:
    errors = np.array([np.inf, 1.0, 0.01, 0.001, 0.0])
    np.testing.assert_allclose(compounded(errors)[2:], errors[2:], rtol=0.02)


def test_groups_in_a_row_keep_the_product_of_what_each_keeps() -> None:
    """Two that lose half each are as bad as one that loses three quarters; sums of errors say worse, by a third."""
    errors = np.array([np.inf, 1.0, 0.75, 0.5, 0.0])
    losses = compounded(errors)
    assert 2 * losses[3] == pytest.approx(losses[2], rel=0.02)
    assert losses[1] > 2.5 * losses[2]  # all but nothing left
    assert losses[0] == np.inf


def test_errors_of_several_consumers_are_shared_among_them() -> None:
    """Half of each of two, or of a single one: twice the loss."""
    one, two = np.array([np.inf, 1.0, 0.5, 0.0]), np.array([np.inf, 2.0, 1.0, 0.0])
    np.testing.assert_allclose(compounded(two), 2 * compounded(one))


def test_nothing_that_can_be_had_costs_nothing() -> None:
    np.testing.assert_array_equal(compounded(np.full(3, np.inf)), np.inf)
