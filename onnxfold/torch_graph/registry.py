"""Registry of torch operations, resolved by operator version.

An *operation* is a function of a node's input tensors; its keyword-only parameters are attributes of the operator, with
their defaults. A *builder* makes an operation from a node, where more of the node counts than its attributes.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from onnx import NodeProto

from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.registry import NodeReader, OperatorRegistry
from onnxfold.graph.view import GraphView

if TYPE_CHECKING:
    import torch


class TorchNode(NodeReader):
    """A node and the float type that the graph computes in."""

    def __init__(self, view: GraphView, node: NodeProto, dtype: "torch.dtype") -> None:
        super().__init__(view, node)
        self.dtype = dtype

    def unsupported(self, why: str) -> UnsupportedModelError:
        """Return the error for a form of the operator that is not covered."""
        return UnsupportedModelError(f"node '{self.name}' ({self.op_type}): {why}")


#: A function of the node's inputs, None for those left out, that returns its output or a tuple of all of them.
Operation = Callable[..., Any]
Builder = Callable[[TorchNode], Operation]

_BUILDERS = OperatorRegistry[Builder]("a builder")
find_builder = _BUILDERS.find
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
            _BUILDERS.add(op_type, build, since=since, domain=domain)
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


def all_operators() -> list[tuple[str, str]]:
    """Return domain and name of every operator that has a builder."""
    return list(dict.fromkeys((domain, op_type) for domain, op_type, _ in _BUILDERS))
