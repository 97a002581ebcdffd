"""Read and rewrite a weight along one of its axes, packed axes of grouped weights included."""

import numpy as np
import numpy.typing as npt

from onnxfold.graph.tensors import Array

Index = npt.NDArray[np.int64]

#: Positions of units, the units whose places are kept, and the matrix that maps old entries to new ones; None where the
#: units that are kept stay as they are.
Fold = tuple[Index, Index, npt.NDArray[np.float64] | None]


def working_type(values: Array) -> np.dtype[np.floating]:
    """Return the type arithmetic happens in: float64 for double weights, else float32."""
    return np.dtype(np.float64 if values.dtype == np.float64 else np.float32)


def move_to_front(values: Array, axis: int, blocks: int = 1) -> Array:
    """Move an axis to the front.

    With `blocks` above 1 the result's first axis runs over (block, entry) pairs: (B*d0, d1, ...) becomes
    (B*d1, d0, ...) for axis 1, where each block of axis 0 has entries of its own.
    """
    if blocks == 1:
        return np.moveaxis(values, axis, 0) if axis else values
    split = values.reshape(blocks, values.shape[0] // blocks, *values.shape[1:])
    moved = np.moveaxis(split, axis + 1, 1)
    return moved.reshape(blocks * moved.shape[1], *moved.shape[2:])


def move_from_front(values: Array, axis: int, blocks: int = 1) -> Array:
    """Undo :func:`move_to_front`, for any width of the first axis that `blocks` divides."""
    if blocks == 1:
        return np.moveaxis(values, 0, axis)
    split = values.reshape(blocks, values.shape[0] // blocks, *values.shape[1:])
    moved = np.moveaxis(split, 1, axis + 1)
    return moved.reshape(blocks * moved.shape[1], *moved.shape[2:])


def take_rows(values: Array, axis: int, blocks: int, positions: Index) -> Array:
    """Return the entries of units along an axis."""
    front = move_to_front(np.asarray(values, working_type(values)), axis, blocks)
    rows = front[positions.reshape(-1)]
    return np.ascontiguousarray(rows.reshape(*positions.shape, int(np.prod(front.shape[1:], dtype=np.int64))))


def put_rows(values: Array, axis: int, blocks: int, positions: Index, rows: Array) -> Array:
    """Return a copy of `values` in which units' entries are replaced by `rows` of shape (n, r, rest)."""
    front = np.array(move_to_front(np.asarray(values, working_type(values)), axis, blocks))
    front[positions.reshape(-1)] = rows.reshape(positions.size, *front.shape[1:])
    return np.ascontiguousarray(move_from_front(front, axis, blocks).astype(values.dtype, copy=False))


def merge_axis(values: Array, axis: int, blocks: int, folds: list[Fold]) -> Array:
    """Replace groups of entries along an axis by linear combinations of them."""
    front = move_to_front(np.asarray(values, working_type(values)), axis, blocks)
    keep = np.ones(len(front), bool)
    for positions, representatives, _ in folds:
        keep[positions.reshape(-1)] = False
        keep[positions[representatives].reshape(-1)] = True
    merged = front[keep]
    place = np.cumsum(keep) - 1
    for positions, representatives, matrix in folds:
        if matrix is None:  # they are in their places; as products with a matrix are, zeros are positive
            target = place[positions[representatives]].reshape(-1)
            merged[target] += merged.dtype.type(0)
            continue
        rows = front[positions.reshape(-1)].reshape(*positions.shape, -1)
        n, r, rest = rows.shape
        new = (matrix.astype(rows.dtype) @ rows.reshape(n, r * rest)).reshape(-1, r, rest)
        target = place[positions[representatives]].reshape(-1)
        merged[target] = new.reshape(len(target), *merged.shape[1:])
    return np.ascontiguousarray(move_from_front(merged, axis, blocks).astype(values.dtype, copy=False))
