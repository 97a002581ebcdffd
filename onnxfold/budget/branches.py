"""Readers in branches: how much of a group's error counts where what reads it is added to something else.

An error curve is relative to the result of the layer that reads the group. In a residual network that result is added
to a stream that carries as much or more, so the same relative error does less harm there.
"""

from collections.abc import Sequence

from onnxfold.channels import FoldGroup
from onnxfold.channels.declarations import Role

#: What the error of a result counts that is added to one of about the same size.
_ADDED = 0.5


def shares_of_error(groups: Sequence[FoldGroup]) -> list[float]:
    """Return, for every group of a graph, what its error counts: the mean over the layers that read it.

    A layer's result is added to others where several layers produce the same channels.
    """
    added = set[str]()
    for group in groups:
        producers = group.by_node(Role.PRODUCER)
        if len(producers) > 1:
            added.update(producers)
    shares = []
    for group in groups:
        readers = group.by_node(Role.CONSUMER)
        counts = [_ADDED if reader in added else 1.0 for reader in readers]
        shares.append(sum(counts) / len(counts) if counts else 1.0)
    return shares
