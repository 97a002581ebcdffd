"""Conversion of arrays to tensors."""

import torch
from onnx import helper
from torch import Tensor

from onnxfold.graph.tensors import Array, elem_type_of, is_float

#: Types of integers and truth values by numpy's names; torch computes with few unsigned ones.
INTEGERS = {
    "bool": torch.bool, "int8": torch.int8, "int16": torch.int16, "int32": torch.int32, "int64": torch.int64,
    "uint8": torch.uint8, "uint16": torch.int32, "uint32": torch.int64, "uint64": torch.int64,
}  # fmt: skip


def tensor_type(elem_type: int, dtype: torch.dtype) -> torch.dtype | None:
    """Return torch's type for an ONNX element type; None if torch has none."""
    if is_float(elem_type):
        return dtype
    try:
        return INTEGERS.get(helper.tensor_dtype_to_np_dtype(elem_type).name)
    except KeyError:
        return None


def to_tensor(values: Array, dtype: torch.dtype) -> Tensor:
    """Return an array as a tensor with separate memory, floats as `dtype`."""
    kind = tensor_type(elem_type_of(values), dtype)
    if kind is None:
        raise TypeError(f"values of the type {values.dtype} have no counterpart in torch")
    wide = "float64" if kind.is_floating_point else "bool" if kind == torch.bool else "int64"
    return torch.tensor(values.astype(wide)).to(kind)
