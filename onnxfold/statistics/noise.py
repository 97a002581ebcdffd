"""Inputs that need no data: random numbers of the right type and shape."""

import numpy as np

from onnxfold.errors import ConfigError
from onnxfold.graph.session import InputInfo
from onnxfold.graph.tensors import Array

#: What a free dimension becomes when nothing else is known: spatial sizes that most networks accept.
_FREE_DIMENSION = 64


def noise_inputs(
    inputs: list[InputInfo], *, samples: int, seed: int, shapes: dict[str, tuple[int, ...]] | None = None
) -> dict[str, Array]:
    """Return standard normal floats, and zeros and ones for integers.

    Parameters
    ----------
    inputs : list of InputInfo
        The model's inputs. A free first dimension becomes `samples`, other free dimensions 64.
    samples : int
        Batch size where the model leaves it free.
    seed : int
        Seed.
    shapes : dict, optional
        Shapes given by the user.
    """
    random = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for info in inputs:
        shape = list((shapes or {}).get(info.name, ())) or [
            d if d is not None else samples if i == 0 else _FREE_DIMENSION for i, d in enumerate(info.shape)
        ]
        if info.dtype.kind == "f":
            feeds[info.name] = random.standard_normal(shape).astype(info.dtype)
        else:
            feeds[info.name] = random.integers(0, 2, shape).astype(info.dtype)
    return feeds


def checked_inputs(inputs: list[InputInfo], given: dict[str, Array]) -> dict[str, Array]:
    """Return a user's arrays in the model's types.

    Raises
    ------
    ConfigError
        If one is missing, or of the wrong rank or size.
    """
    feeds = {}
    for info in inputs:
        if info.name not in given:
            raise ConfigError(f"the data has no array '{info.name}': name the arrays after the model's inputs")
        values = np.asarray(given[info.name])
        expected = [d if d is not None else "?" for d in info.shape]
        fits = values.ndim == len(info.shape) and all(
            d is None or d == v for d, v in zip(info.shape[1:], values.shape[1:], strict=True)
        )
        if not fits:
            raise ConfigError(f"array '{info.name}' has the shape {list(values.shape)}, the model wants {expected}")
        if info.shape and info.shape[0] is not None and len(values) % info.shape[0]:
            raise ConfigError(
                f"array '{info.name}' has {len(values)} samples, the model's fixed batch is {info.shape[0]}"
            )
        feeds[info.name] = values.astype(info.dtype, copy=False)
    if len({len(v) for v in feeds.values()}) > 1:
        raise ConfigError("the arrays of the data have different numbers of samples")
    return feeds
