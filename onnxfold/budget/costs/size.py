"""Size of a model: parameters, multiply-accumulates and bytes."""

from onnxfold.budget.costs.macs import count_macs
from onnxfold.budget.costs.weights import count_parameters
from onnxfold.graph.files.save import file_bytes
from onnxfold.graph.view import GraphView
from onnxfold.report import ModelSize


def model_size(view: GraphView) -> ModelSize:
    """Return parameters, multiply-accumulates per sample, and the bytes of its file."""
    return ModelSize(count_parameters(view), count_macs(view), file_bytes(view))
