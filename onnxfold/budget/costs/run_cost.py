"""Cost of running a network, counted from shapes."""

from math import prod

from onnxfold.budget.costs.macs import MacsCost
from onnxfold.budget.costs.shapes import BatchOfOne, common_batch
from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.view import GraphView

#: Writing an element of an activation takes as long as so many multiply-accumulates (ResNet18 and MobileNetV2 were
#: measured): networks of depthwise convolutions have few of these, and take long.
_MACS_PER_ELEMENT = 200


def forward_cost(view: GraphView) -> float:
    """Return the cost of a run of one sample in multiply-accumulates; 0 where sizes are not known."""
    try:
        sizes = BatchOfOne(view)
        written = [sizes.shape(name, any_leading=True) for node in view.nodes for name in node.output if name]
        elements = sum(prod(shape) for shape in written) / common_batch(view)
        return MacsCost([(view, [])])([]) + _MACS_PER_ELEMENT * elements
    except UnsupportedModelError:
        return 0.0
