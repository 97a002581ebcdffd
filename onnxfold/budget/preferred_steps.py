"""Steps of widths that a runtime computes fast: a static table, so the same input gives the same bytes everywhere.

onnxruntime computes the channels of convolutions of images in tiles of 8 or 16, and only where their number is a
multiple of 4 (:mod:`onnxfold.budget.costs.tiled_macs` has the prices). Matrix products have no such steps.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from math import lcm

from onnxfold.channels import FoldGroup
from onnxfold.channels.declarations import Role
from onnxfold.channels.layers import is_tiled, linear
from onnxfold.graph.view import GraphView


class Reader(Enum):
    """The kind of layer that computes or reads the channels of a group."""

    CONVOLUTION = "convolution"  #: plain or depthwise, of images
    OTHER = "other"


#: Steps by what touches a group: the preferred one, then those that a group relaxes to.
STEPS: Mapping[Reader, tuple[int, ...]] = {Reader.CONVOLUTION: (8, 4, 1), Reader.OTHER: (1,)}
#: Groups of convolutions that have so many channels go in steps of the larger tile: half of a tile of AVX-512 saves no
#: time, and the same accuracy buys more where whole tiles go.
WIDE, WIDE_STEP = 128, 16


def preferred_steps(view: GraphView, groups: Sequence[FoldGroup], block: int = 1) -> list[tuple[int, ...]]:
    """Return the steps of every group of a graph: the preferred one first, then ever smaller ones.

    A step is a multiple of the number of blocks, and never larger than the group.
    """
    ladders = []
    for group in groups:
        touched = set(_readers(view, group))
        wanted = STEPS[Reader.CONVOLUTION if Reader.CONVOLUTION in touched else Reader.OTHER]
        tile = max(block, WIDE_STEP if group.size >= WIDE else 1)
        larger = (tile,) if tile > wanted[0] > 1 else ()
        steps = dict.fromkeys(lcm(step, group.block_count) for step in (*larger, *wanted, 1))
        ladders.append(tuple(step for step in steps if step <= group.size))
    return ladders


def _readers(view: GraphView, group: FoldGroup) -> Iterator[Reader]:
    for role in (Role.PRODUCER, Role.CONSUMER):
        for output in group.by_node(role):
            node = view.producer(output)
            operator = None if node is None else linear(view, node)
            tiled = operator is not None and is_tiled(view, operator)
            yield Reader.CONVOLUTION if tiled else Reader.OTHER
