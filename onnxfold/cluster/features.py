"""Feature vectors by which channels are compared.

A unit's feature vector is the concatenation the paper clusters, [W_l | diag(Sigma_s) | diag(Sigma_n) | W_{l+1}^T],
over all producers, BatchNormalizations and consumers of the group. The diagonal matrices put every channel on
an axis of its own, so what they say is: channels with a large gamma or a small variance are better not merged. On a
graph whose BatchNormalizations have been normalised (see :mod:`onnxfold.passes.merge.normalize_batch_norm`), W_l is
already Sigma_n W_l, and Fold-AR leaves Sigma_n out.

References
----------
"Forget the Data and Fine-tuning! Just Fold the Network to Compress", arXiv 2502.10216, section 3.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from onnxfold.channels.declarations import Role
from onnxfold.channels.group import FoldGroup, Member
from onnxfold.channels.layers import epsilon
from onnxfold.channels.rows import rows_of
from onnxfold.graph.view import GraphView

Rows = npt.NDArray[np.floating]


def features(view: GraphView, group: FoldGroup, *, with_deviation: bool) -> Iterator[tuple[Role, Rows]]:
    """Yield the feature blocks of a group's units, each of shape (n_units, d).

    `with_deviation` includes Sigma_n; leave it out where rows are normalised.
    """
    for member in group.members:
        if member.role in (Role.PRODUCER, Role.CONSUMER):
            yield member.role, member_rows(view, member)
        elif member.role is Role.SCALE:
            yield member.role, _diagonals(member_rows(view, member))
        elif member.role is Role.VARIANCE and with_deviation:
            variance = np.maximum(member_rows(view, member), 0.0)
            yield member.role, _diagonals(1.0 / np.sqrt(variance + epsilon(view, member)))


def _diagonals(values: Rows) -> Rows:
    """Return [diag(v_1) | diag(v_2) | ...] for the columns of an (n, r) matrix."""
    return np.concatenate([np.diag(column) for column in values.T], axis=1)


def member_rows(view: GraphView, member: Member) -> Rows:
    """Return the entries of a weight for each unit, shape (n_units, d)."""
    rows = rows_of(view, member)
    return rows.reshape(len(rows), -1)
