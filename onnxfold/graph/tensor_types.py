"""Types of tensors: element type, dimensions, and the symbols of dimensions that are not known as numbers."""

from collections.abc import Sequence

import onnx
from onnx import TensorShapeProto, helper

Shape = tuple[int | None, ...]

#: Element type, dimensions, and the symbol of each dimension ('' where it has none).
TensorType = tuple[int, Shape, tuple[str, ...]]


def typed_info(name: str, kind: TensorType) -> onnx.ValueInfoProto:
    """Return a type as a model declares it."""
    info = helper.make_tensor_value_info(name, kind[0], kind[1])
    dims: Sequence[TensorShapeProto.Dimension] = info.type.tensor_type.shape.dim
    for dim, symbol in zip(dims, kind[2], strict=False):
        if symbol and not dim.HasField("dim_value"):
            dim.dim_param = symbol
    return info
