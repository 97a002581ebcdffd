"""Sizes for the free dimensions of inputs, tried in onnxruntime."""

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto, helper

from onnxfold.errors import MemoryLimitError, OnnxFoldError
from onnxfold.graph.run.session import Session
from onnxfold.graph.tensors import Shape
from onnxfold.graph.view import GraphView
from onnxfold.inputs.images.synthetic import FREE_DIMENSION
from onnxfold.inputs.tokens.interface import token_interface

#: Height and width of images, and lengths of anything else, the most usual ones first: networks that halve an image
#: five times want multiples of 32, those that cut audio into windows want more samples than a window holds.
_SIZES = ((224, FREE_DIMENSION), (224, 1024), (224, 16000), (640, FREE_DIMENSION), (FREE_DIMENSION, FREE_DIMENSION))
_IMAGE_CHANNELS = (1, 3, 4)
_NO_ARRAY = (TensorProto.STRING, TensorProto.UNDEFINED)


def free_sizes(view: GraphView) -> dict[str, tuple[int | None, ...]]:
    """Return the shapes of the inputs that have other free dimensions than the batch, with sizes in their place.

    Height and width of an image are 224, other dimensions 64; other usual sizes where onnxruntime does not run the
    network at these, or a result is empty. Dimensions with one symbol get one size.
    """
    shapes = {name: view.shape(name) for name in view.input_names}
    if all(shape is None or None not in shape[1:] for shape in shapes.values()):
        return {}
    for image, other in _SIZES:
        sizes = dict(_with_sizes(view, image, other))
        if _runs(view, sizes):
            return {name: shape for name, shape in sizes.items() if shape[1:] != (shapes[name] or ())[1:]}
    return {}


def needed_batch(view: GraphView) -> dict[str, tuple[int, ...]]:
    """Return shapes of one sample for the inputs with a free batch, where a state of fixed size lets no more pass."""
    shapes = dict(_with_sizes(view, FREE_DIMENSION, FREE_DIMENSION))
    free = {n: (1, *(d or 1 for d in shape[1:])) for n, shape in shapes.items() if shape[:1] == (None,)}
    if len(free) in (0, len(shapes)) or token_interface(view) is not None:
        return {}
    return free if _runs(view, shapes) and not _runs(view, shapes, batch=2) else {}


def needed_sizes(view: GraphView) -> dict[str, tuple[int, ...]]:
    """Return shapes of all inputs with which a network runs that does not at the usual length of free dimensions."""
    shapes = {name: view.shape(name) for name in view.input_names}
    if all(shape is None or None not in shape[1:] for shape in shapes.values()) or token_interface(view) is not None:
        return {}
    try:
        if _runs(view, dict(_with_sizes(view, FREE_DIMENSION, FREE_DIMENSION))):
            return {}
        sizes = free_sizes(view)
    except MemoryLimitError:  # said where the network is run
        return {}
    full = {name: sizes.get(name, shape) or () for name, shape in shapes.items()} if sizes else {}
    return {name: tuple(1 if d is None else d for d in shape) for name, shape in full.items()}


def _with_sizes(view: GraphView, image: int, other: int) -> Iterator[tuple[str, tuple[int | None, ...]]]:
    of_symbols: dict[str, int] = {}
    for name in view.input_names:
        shape = view.shape(name) or ()
        symbols = view.symbols(name) or ("",) * len(shape)
        size = image if _is_image(shape) else other
        free = [of_symbols.setdefault(symbol, size) if symbol else size for symbol in symbols]
        yield name, tuple(d if d is not None or i == 0 else free[i] for i, d in enumerate(shape))


def _is_image(shape: Shape) -> bool:
    """Whether height and width of an image are free."""
    if len(shape) != 4:
        return False
    sides = shape[2:] if shape[1] in _IMAGE_CHANNELS else shape[1:3] if shape[3] in _IMAGE_CHANNELS else (0,)
    return set(sides) == {None}


def _runs(view: GraphView, shapes: dict[str, tuple[int | None, ...]], batch: int = 1) -> bool:
    """Whether onnxruntime runs the network on zeros of these shapes, and no result is empty."""
    if any(view.elem_type(name) in _NO_ARRAY for name in view.input_names):
        return False
    trial = view.copy()
    fixed = {name: tuple(batch if d is None else d for d in shape) for name, shape in shapes.items()}
    trial.fix_input_shapes(fixed)
    types = {name: helper.tensor_dtype_to_np_dtype(view.elem_type(name) or TensorProto.FLOAT) for name in fixed}
    try:
        results = Session(trial).run({name: np.zeros(shape, types[name]) for name, shape in fixed.items()})
    except MemoryLimitError:
        raise
    except OnnxFoldError:
        return False
    return all(np.size(result) for result in results)
