"""Moments of what a consumer reads, and sizes of what it weights it by, place by place.

A channel may lie on several places of an axis (the dimensions of a head, the positions of a Flatten). Covariances take
all of them together; scores of channels that come from the pruning of single weights do not.
"""

from dataclasses import dataclass

import numpy as np

from onnxfold.channels.declarations import Positions
from onnxfold.channels.group import Member
from onnxfold.channels.rows import rows_of
from onnxfold.graph.tensors import Matrix
from onnxfold.graph.view import GraphView
from onnxfold.statistics.moments import ChannelMoments


@dataclass(frozen=True, eq=False)
class Places:
    """Every field has the shape (n_units, r)."""

    mean: Matrix
    variance: Matrix
    absolute: Matrix  # sums of |w| and of w^2 over the consumer's weights for it
    squared: Matrix

    @property
    def root_mean_square(self) -> Matrix:
        """Root of the mean of the squares of what is read."""
        root: Matrix = np.sqrt(self.variance + self.mean**2)
        return root


def places_of(view: GraphView, member: Member, positions: Positions, read: ChannelMoments) -> Places:
    """Return the places of a group's units."""
    columns = rows_of(view, member).astype(np.float64)
    absolute, squared = np.abs(columns).sum(axis=2), np.square(columns).sum(axis=2)
    mean, variance = read.mean[positions], read.variance[positions]
    if absolute.shape != mean.shape:  # places of the weight are not those of the activation
        mean, variance = mean.mean(axis=1, keepdims=True), (variance + mean**2).mean(axis=1, keepdims=True)
        variance -= mean**2
        absolute, squared = (part.sum(axis=1, keepdims=True) for part in (absolute, squared))
    return Places(mean, variance, absolute, squared)
