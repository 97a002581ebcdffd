"""The network of a report: its layers, where their results meet, and how wide they were and are."""

from dataclasses import dataclass


@dataclass(frozen=True)
class NetworkNode:
    """A layer, or a node where results of several layers meet.

    Parameters
    ----------
    name : str
        Name of the node.
    op_type : str
        Its operator.
    reads : tuple of int
        Indices of the nodes whose results reach it without a layer in between; empty at the inputs.
    width, folded_width : int
        Channels that a layer writes, before and after; 0 where results meet.
    group : str
        Name of the fold group that its channels belong to; empty where they keep their number.
    """

    name: str
    op_type: str
    reads: tuple[int, ...]
    width: int = 0
    folded_width: int = 0
    group: str = ""

    @property
    def is_layer(self) -> bool:
        """Whether it has weights of its own."""
        return self.width > 0
