"""The bias of a layer in the folded network."""

import numpy as np

from onnxfold.channels.layers import Layer
from onnxfold.graph.view import GraphView


def bias_of(view: GraphView, layer: Layer, width: int) -> str | None:
    """Return the name of a layer's bias vector, of zeros where it had none; None where it cannot have one."""
    if layer.bias:
        return layer.bias if view.weight_size(layer.bias) == width else None
    node = view.producer(layer.node.output[0])
    if node is None or not layer.lacks_bias:
        return None
    name = view.add_weight(f"{node.output[0]}_bias", np.zeros(width, view.weight(layer.rows.tensor).dtype))
    view.fill_input(node, layer.operator.bias.number, name)
    return name
