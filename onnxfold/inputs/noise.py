"""Random inputs of the right type and shape."""

from collections.abc import Mapping, Sequence

import numpy as np

from onnxfold.graph.session import InputInfo
from onnxfold.graph.tensors import Array
from onnxfold.machine import memory

#: What a free dimension becomes when nothing else is known: spatial sizes that most networks accept.
_FREE_DIMENSION = 64


def noise_inputs(
    inputs: list[InputInfo], *, samples: int, seed: int, shapes: Mapping[str, tuple[int, ...]] | None = None
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
        require_input(info.name, shape)
        if info.dtype.kind == "f":
            feeds[info.name] = random.standard_normal(shape).astype(info.dtype)
        else:
            feeds[info.name] = random.integers(0, 2, shape).astype(info.dtype)
    return feeds


def require_input(name: str, shape: Sequence[int]) -> None:
    """Refuse an input that does not fit into the memory limit; random numbers are drawn in 8 bytes.

    Raises
    ------
    MemoryLimitError
        If it takes more.
    """
    memory.require(memory.array_bytes(tuple(shape), 8), f"input '{name}' of the shape {list(shape)}")
