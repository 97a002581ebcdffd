"""Placement of activations in one static block of memory."""

from collections.abc import Sequence
from dataclasses import dataclass

#: What vector units and caches like, and TensorFlow Lite Micro uses.
ALIGNMENT = 16


@dataclass
class Buffer:
    """Memory that is needed from one node to another."""

    size_bytes: int
    first: int  # the nodes, by their place in the order of execution, that write it first and read it last
    last: int
    offset: int = 0  # its place, set by :func:`plan`


def plan(buffers: Sequence[Buffer]) -> int:
    """Give every buffer an offset such that buffers needed at the same time do not overlap; return the bytes in all.

    The largest are placed first, of equal ones the last first, each in the lowest gap that holds it: "greedy by size
    for offset calculation" of Pisarchyk and Lee, Efficient memory management for deep neural net inference (arXiv
    2001.03288), in the order in which TensorFlow Lite Micro does it.
    """
    placed: list[Buffer] = []
    for _, buffer in sorted(enumerate(buffers), key=lambda entry: (-entry[1].size_bytes, -entry[0])):
        offset = 0
        for other in sorted(placed, key=lambda b: b.offset):
            if other.last < buffer.first or buffer.last < other.first:
                continue
            if offset + buffer.size_bytes <= other.offset:
                break
            offset = max(offset, align(other.offset + other.size_bytes))
        buffer.offset = offset
        placed.append(buffer)
    return max((align(b.offset + b.size_bytes) for b in placed), default=0)


def align(size_bytes: int) -> int:
    """Round up to a multiple of `ALIGNMENT`."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT
