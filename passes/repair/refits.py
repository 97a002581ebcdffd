r"""Record of what a least-squares repair does to weights beyond the merge, exact enough to repeat it.

A consumer's weight W becomes, with P on its rows and B in place of Q on its columns, the taps D and the gain g of its
rows,

    W' = diag(g) (P W B + D) ,

each of which is the identity, or zero, where the repair left it.
"""

from dataclasses import dataclass, field

import numpy as np

from onnxfold.channels.declarations import Axis, Positions
from onnxfold.graph.tensors import Array, Matrix


@dataclass(frozen=True, eq=False)
class ColumnMap:
    """The map of a consumer's columns."""

    axis: Axis
    positions: Positions  # places of each unit along the axis before the fold
    representatives: Positions  # the units whose places stay
    matrix: Matrix


@dataclass(eq=False)
class Refits:
    """Changes of a repair to weights, by their names.

    Attributes
    ----------
    columns : dict of str to ColumnMap
        B.
    taps : dict of str to ndarray
        D, in the shape of the folded weight.
    gains : dict of str to ndarray
        g, in the order of the folded rows.
    """

    columns: dict[str, ColumnMap] = field(default_factory=dict)
    taps: dict[str, Array] = field(default_factory=dict)
    gains: dict[str, Matrix] = field(default_factory=dict)

    def add_gain(self, weight: str, gain: Matrix) -> None:
        """Note that rows were scaled, perhaps again."""
        self.gains[weight] = gain * self.gains.get(weight, np.ones(len(gain)))
