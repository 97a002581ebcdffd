"""The view that a builder of operations has of one node."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from onnx import NodeProto

from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView, attr_float, attr_int, attr_ints, attribute, node_key

if TYPE_CHECKING:
    import torch


class TorchNode:
    """One node: attributes, constant inputs, and the float type that the graph computes in.

    Parameters
    ----------
    view : GraphView
        The graph.
    node : NodeProto
        The node.
    dtype : torch.dtype
        The type that stands for every float type of the model.
    """

    def __init__(self, view: GraphView, node: NodeProto, dtype: "torch.dtype") -> None:
        self._view = view
        self._node = node
        self.dtype = dtype
        self.op_type = node.op_type
        self.version = view.opset(node.domain)

    def has(self, name: str) -> bool:
        """Whether the node has the attribute."""
        return any(a.name == name for a in self._node.attribute)

    def value(self, name: str) -> object:
        """Return an attribute as ONNX's Python helpers give it, None if absent."""
        return attribute(self._node, name)

    def integer(self, name: str, default: int) -> int:
        """Return an integer attribute."""
        return attr_int(self._node, name, default)

    def integers(self, name: str, default: Iterable[int] = ()) -> list[int]:
        """Return an integer list attribute."""
        return attr_ints(self._node, name, default)

    def number(self, name: str, default: float) -> float:
        """Return a float attribute."""
        return attr_float(self._node, name, default)

    def text(self, name: str, default: str) -> str:
        """Return a string attribute."""
        value = attribute(self._node, name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def has_input(self, index: int) -> bool:
        """Whether an input is given."""
        return index < len(self._node.input) and bool(self._node.input[index])

    def has_output(self, index: int) -> bool:
        """Whether an output is asked for."""
        return index < len(self._node.output) and bool(self._node.output[index])

    @property
    def output_count(self) -> int:
        """Number of outputs, those left out included."""
        return len(self._node.output)

    def constant(self, index: int) -> Array | None:
        """Return the values of an input that is a weight, None for others."""
        if not self.has_input(index) or not self._view.is_weight(self._node.input[index]):
            return None
        return self._view.weight(self._node.input[index])

    def unsupported(self, why: str) -> UnsupportedModelError:
        """Return the error for a form of the operator that is not covered."""
        return UnsupportedModelError(f"node '{self._node.name or node_key(self._node)}' ({self.op_type}): {why}")
