"""Empty inputs, such as a past of no positions: they hold no values, so each network gets them in its own shape."""

from collections.abc import Mapping

import numpy as np

from onnxfold.graph.shapes.tensor_types import Shape
from onnxfold.graph.tensors import Array


def fit_empty(name: str, values: Array, shapes: Mapping[str, Shape | None]) -> Array:
    """Return the values of an input; empty ones with the dimensions that are fixed there.

    Of two networks, one may have fewer heads in its caches than the other. Both are run on the same inputs.
    """
    wanted = shapes.get(name)
    if values.size or wanted is None or len(wanted) != values.ndim:
        return values
    shape = tuple(have if want is None else want for have, want in zip(values.shape, wanted, strict=True))
    return values if 0 not in shape else np.zeros(shape, values.dtype)


def fit_feeds(feeds: Mapping[str, Array], shapes: Mapping[str, Shape | None]) -> dict[str, Array]:
    """Return inputs as a network takes them: empty ones in its own shapes, as many as it has.

    Of two networks, one may also have fewer caches than the other. One empty input is as good as another.
    """
    fitted = {
        name: fit_empty(name, values, shapes) for name, values in feeds.items() if name in shapes or np.size(values)
    }
    for name in [name for name in shapes if name not in fitted]:
        rank = len(shapes[name] or ())
        like = next((values for values in feeds.values() if values.ndim == rank and not values.size), None)
        if like is not None:
            fitted[name] = fit_empty(name, like, shapes)
    return fitted
