"""Empty inputs, such as a past of no positions: they hold no values, so each network gets them in its own shape."""

from collections.abc import Mapping

import numpy as np

from onnxfold.graph.tensor_types import Shape
from onnxfold.graph.tensors import Array


def fit_empty(name: str, values: Array, shapes: Mapping[str, Shape | None]) -> Array:
    """Return the values of an input; empty ones with the dimensions that are fixed there.

    Of two networks, one may have fewer heads in its caches than the other. Both are run on the same inputs.

    Parameters
    ----------
    name : str
        The input.
    values : ndarray
        Its values.
    shapes : mapping of str to tuple of int or None
        Shapes of inputs as a network has them, None for what is free.
    """
    wanted = shapes.get(name)
    if values.size or wanted is None or len(wanted) != values.ndim:
        return values
    shape = tuple(have if want is None else want for have, want in zip(values.shape, wanted, strict=True))
    return values if 0 not in shape else np.zeros(shape, values.dtype)
