"""Rows of wide matrices, so many at a time, where there is no room for copies of the whole."""

from collections.abc import Iterator

#: Matrices above this size are worked on in parts, so many rows at a time.
WIDE, PART = 4096, 512


def parts(count: int, size: int = PART) -> Iterator[slice]:
    """Yield the rows of a matrix in parts of one size, the last one perhaps smaller."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def row_parts(count: int) -> Iterator[slice]:
    """Yield the rows of a matrix, those of a wide one in parts."""
    yield from parts(count, count if 0 < count <= WIDE else PART)
