"""Random inputs of the right type and shape."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from onnxfold.graph.run.session import InputInfo
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.inputs.images.input_scale import InputScale, input_scale
from onnxfold.inputs.tokens.feeds import whole_feeds
from onnxfold.inputs.tokens.interface import interface_of, token_interface
from onnxfold.machine import memory

#: Size that a free dimension gets when nothing else is known: spatial sizes that most networks accept.
_FREE_DIMENSION = 64


def noise_inputs(
    inputs: list[InputInfo], *, samples: int, seed: int, view: GraphView | None = None
) -> dict[str, Array]:
    """Return standard normal floats, and zeros and ones for integers; of a language model, what fits together.

    Images that the graph normalises by itself are normal behind that.
    """
    random = np.random.default_rng(seed)
    shapes = {} if view is None else view.input_shapes
    closed = [replace(info, shape=tuple(shapes.get(info.name, info.shape))) for info in inputs]
    interface = interface_of(closed) if view is None else token_interface(view)
    if interface is not None:
        interface = interface.with_session_types(inputs)
        length = interface.length(_FREE_DIMENSION)
        ids = random.integers(0, interface.vocabulary, (interface.fixed_batch or samples, length))
        return whole_feeds(interface, ids, lambda info, shape: _values(random, info.name, shape, info.dtype))
    feeds: dict[str, Array] = {}
    for info in closed:
        shape = [d if d is not None else samples if i == 0 else _FREE_DIMENSION for i, d in enumerate(info.shape)]
        scale = None if view is None else input_scale(view, info.name)
        feeds[info.name] = _values(random, info.name, shape, info.dtype, scale)
    return feeds


def scale_values(standard: Array, scale: InputScale, dtype: np.dtype[np.generic]) -> Array:
    """Return values of an input in its type, for standardised numbers."""
    values = scale.values(standard)
    return (values if dtype.kind == "f" else np.rint(values)).astype(dtype)


def _values(
    random: np.random.Generator, name: str, shape: Sequence[int], dtype: np.dtype[np.generic],
    scale: InputScale | None = None,
) -> Array:  # fmt: skip
    require_input(name, shape)
    if scale is not None:
        return scale_values(random.standard_normal(shape), scale, dtype)
    return (random.standard_normal(shape) if dtype.kind == "f" else random.integers(0, 2, shape)).astype(dtype)


def require_input(name: str, shape: Sequence[int]) -> None:
    """Refuse an input that does not fit into the memory limit; random numbers are drawn in 8 bytes."""
    memory.require(memory.array_bytes(tuple(shape), 8), f"input '{name}' of the shape {list(shape)}")
