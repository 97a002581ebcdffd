r"""Move the scales of norms over a residual stream into the weights that read them.

A reader W of the norm x^ g + b, x^ what is divided by its length, becomes W diag(g), and g becomes ones. The shift b,
of a norm that also subtracts the mean, goes where that subtraction leaves room: x^ adds up to zero, so its coordinate
along the vector of ones is free. The shift becomes ones, and the n columns of W read it,

    W' = W diag(g) (I - 1 1^T / n) + (W b) 1^T / n,   W' (x^ + 1) = W (x^ g + b).

The network computes the same, without a node or a bias more, and the stream may be rotated.
"""

from dataclasses import dataclass

import numpy as np

from onnxfold.channels.group import FoldGroup, ScaledNorm
from onnxfold.channels.rows import per_unit, put_rows_of, rows_of
from onnxfold.graph.tensors import Matrix
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult


@dataclass(frozen=True)
class AbsorbNorms(Pass):
    """Make the scale and the shift of every norm over some streams the same number for all channels."""

    groups: tuple[FoldGroup, ...]  # the streams; groups without norms stay as they are

    def run(self, view: GraphView) -> PassResult:
        """Rewrite weights; the graph stays."""
        changed = [_absorb(view, group, norm) for group in self.groups for norm in group.norms]
        return PassResult(any(changed))


def _absorb(view: GraphView, group: FoldGroup, norm: ScaledNorm) -> bool:
    scale = _values(view, group, norm.scale)
    shift = _values(view, group, norm.shift) if norm.shift else np.zeros_like(scale)
    if (scale == 1.0).all() and (shift == shift[0]).all() and shift[0] in (0.0, 1.0):
        return False
    for member in group.members:
        if member.axis in norm.readers:
            rows = rows_of(view, member)
            read = rows * scale[:, None, None]
            if shift.any():
                read += (np.tensordot(shift, rows, (0, 0)) - read.sum(axis=0)) / len(rows)
            put_rows_of(view, member, read)
    view.set_weight(norm.scale, np.ones_like(scale))
    if shift.any():
        view.set_weight(norm.shift, np.ones_like(shift))
    return True


def _values(view: GraphView, group: FoldGroup, weight: str) -> Matrix:
    """Return the value of a vector for every channel."""
    (member,) = (member for member in group.members if member.axis.tensor == weight)
    return per_unit(view, member)[:, 0].astype(np.float64)
