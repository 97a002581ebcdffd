"""Registry of torch operations, resolved by operator version; types of tensors.

An *operation* is a function of a node's input tensors; its keyword-only parameters are attributes of the operator, with
their defaults. A *builder* makes an operation from a node, where more of the node counts than its attributes.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from onnx import TensorProto
from torch import Tensor

from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.registry import NodeReader, OperatorRegistry
from onnxfold.graph.tensors import Array, elem_type_of, is_float

#: What every float type of a model becomes.
FLOAT = torch.float32


class TorchNode(NodeReader):
    """A node, as builders read it."""

    def unsupported(self, why: str) -> UnsupportedModelError:
        """Return the error for a form of the operator that is not covered."""
        return UnsupportedModelError(f"node '{self.name}' ({self.op_type}): {why}")


#: A function of the node's inputs, None for those left out, that returns its output or a tuple of all of them.
Operation = Callable[..., Any]
Builder = Callable[[TorchNode], Operation]

BUILDERS = OperatorRegistry[Builder]("a builder")
#: How attributes are read, by the type of their default.
_READERS: dict[type, Callable[[TorchNode, str, Any], Any]] = {
    bool: lambda node, name, default: bool(node.integer(name, default)),
    int: TorchNode.integer,
    float: TorchNode.number,
    str: TorchNode.text,
    tuple: TorchNode.integers,
}


def operator(*op_types: str, since: int = 1, domain: str = "") -> Callable[[Builder], Builder]:
    """Register a builder for operators."""

    def register(build: Builder) -> Builder:
        for op_type in op_types:
            BUILDERS.add(op_type, build, since=since, domain=domain)
        return build

    return register


def operation(*op_types: str, since: int = 1, domain: str = "") -> Callable[[Operation], Operation]:
    """Register an operation for operators."""

    def register(run: Operation) -> Operation:
        operator(*op_types, since=since, domain=domain)(partial(_read_attributes, run))
        return run

    return register


def operations(rows: Mapping[str, Operation], *, since: int = 1, domain: str = "") -> None:
    """Register an operation for every operator of a table."""
    for op_type, run in rows.items():
        operation(op_type, since=since, domain=domain)(run)


def _read_attributes(run: Operation, node: TorchNode) -> Operation:
    """Return an operation with the attributes of a node."""
    defaults = getattr(run, "__kwdefaults__", None) or {}
    return partial(run, **{name: _READERS[type(value)](node, name, value) for name, value in defaults.items()})


#: Types of integers and truth values; torch computes with few unsigned ones.
_INTEGERS: dict[int, torch.dtype] = {
    TensorProto.BOOL: torch.bool, TensorProto.INT8: torch.int8, TensorProto.INT16: torch.int16,
    TensorProto.INT32: torch.int32, TensorProto.INT64: torch.int64, TensorProto.UINT8: torch.uint8,
    TensorProto.UINT16: torch.int32, TensorProto.UINT32: torch.int64, TensorProto.UINT64: torch.int64,
}  # fmt: skip


def tensor_type(elem_type: int) -> torch.dtype | None:
    """Return torch's type for an ONNX element type; None if torch has none."""
    return FLOAT if is_float(elem_type) else _INTEGERS.get(elem_type)


def to_tensor(values: Array) -> Tensor:
    """Return an array as a tensor with separate memory."""
    kind = tensor_type(elem_type_of(values))
    if kind is None:
        raise TypeError(f"values of the type {values.dtype} have no counterpart in torch")
    wide = "float64" if kind.is_floating_point else "bool" if kind == torch.bool else "int64"
    return torch.tensor(values.astype(wide)).to(kind)
