"""Targets of an inversion: stored statistics, layers that had some, class scores, inputs to optimise."""

from collections.abc import Iterator

from onnx import NodeProto

from onnxfold.channels.layers import batch_norm
from onnxfold.graph.tensors import is_float
from onnxfold.graph.view import GraphView

_IMAGE_CHANNELS = (1, 3, 4)


def optimised_inputs(view: GraphView) -> list[str]:
    """Return the float inputs that have a batch axis and another one."""
    return [n for n in view.input_names if is_float(view.elem_type(n)) and len(view.shape(n) or ()) >= 2]


def normalizations(view: GraphView) -> list[NodeProto]:
    """Return the BatchNormalizations with constant statistics that depend on an input that is optimised."""
    nodes = []
    for node in _reached_nodes(view):
        norm = batch_norm(view, node)
        if norm is not None and all(map(view.is_weight, (norm.scale, norm.shift, norm.mean, norm.variance))):
            nodes.append(node)
    return nodes


def fused_layers(view: GraphView) -> list[NodeProto]:
    """Return the convolutions with a constant bias that depend on an input that is optimised.

    They are where an exporter leaves a BatchNormalization that it fuses.
    """
    return [
        node
        for node in _reached_nodes(view)
        if node.op_type == "Conv" and len(node.input) > 2 and all(map(view.is_weight, node.input[1:3]))
    ]


def _reached_nodes(view: GraphView) -> Iterator[NodeProto]:
    """Yield the nodes that depend on an input that is optimised."""
    reached = set(optimised_inputs(view))
    for node in view.nodes:
        if not reached.isdisjoint(node.input):
            reached.update(o for o in node.output if o)
            yield node


def class_scores(view: GraphView) -> str:
    """Return the tensor with class scores before a softmax, '' if no output looks like them.

    They have the shape (samples, classes), or (samples, classes, 1, ...). Sigmoids are no scores of classes that
    exclude each other.
    """
    samples = {shape[0] for name in optimised_inputs(view) if (shape := view.shape(name))}
    for name in view.output_names:
        shape = view.shape(name)
        if shape and shape[0] is not None and None not in samples and shape[0] not in samples:
            continue
        if not shape or len(shape) < 2 or shape[1] is None or shape[1] < 2 or any(d != 1 for d in shape[2:]):
            continue
        producer = view.producer(name)
        if producer is None or not is_float(view.elem_type(name)) or producer.op_type in ("Sigmoid", "HardSigmoid"):
            continue
        return producer.input[0] if producer.op_type == "Softmax" else name
    return ""


def spatial_axes(shape: tuple[int, ...]) -> list[int]:
    """Return the axes along which neighbours are alike: of signals, images and volumes, channels first or last."""
    if len(shape) < 3:
        return []
    if len(shape) == 4 and shape[1] not in _IMAGE_CHANNELS and shape[3] in _IMAGE_CHANNELS:
        return [1, 2]
    return list(range(2, len(shape)))
