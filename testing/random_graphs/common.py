"""Types, limits and errors of the generator."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]
Shape = tuple[int, ...]
Feeds = dict[str, Array]
MICROSOFT = "com.microsoft"
STATIC_BATCH = 2
NEWEST_OPSET = 24
MAX_ELEMENTS = 700
#: onnx's checker does not know the operator, which onnxruntime nevertheless writes into the default domain.
UNKNOWN_TO_ONNX = {"SimplifiedLayerNormalization"}


class GeneratorError(Exception):
    """No valid graph was found."""


class DoesNotFitError(Exception):
    """A block cannot be placed on this tensor or in this operator set."""
