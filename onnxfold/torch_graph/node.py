"""The view that a builder of operations has of one node."""

from typing import TYPE_CHECKING

from onnx import NodeProto

from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.node_reader import NodeReader
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
