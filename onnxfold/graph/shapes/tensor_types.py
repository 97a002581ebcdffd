"""Types of tensors: element type, dimensions, and the symbols of dimensions that are not known as numbers."""

from collections.abc import Mapping, Sequence

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


def with_sizes(kind: TensorType, sizes: Mapping[str, int]) -> TensorType:
    """Return a type with numbers for some symbols."""
    elem_type, shape, symbols = kind
    dims = tuple(sizes.get(s) if d is None else d for d, s in zip(shape, symbols, strict=True))
    return elem_type, dims, symbols
