"""Merge constant factors and summands of channels into the convolution that they stand behind.

So frozen BatchNormalizations are written, and those of Caffe and TensorFlow: as Mul and Add, or Sub, Div, Mul and Add.
Elsewhere they look like layers without a bias, which nothing inverts or repairs.
"""

from collections.abc import Iterator

import numpy as np
from onnx import NodeProto, TensorProto

from onnxfold.graph.nodes import attr_int, node_key
from onnxfold.graph.patterns import Op, only_reader
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult
from onnxfold.passes.fusion.fuse_batch_norm import merge_affine

_CONVOLUTIONS, _AFFINE = Op("Conv|ConvTranspose"), Op("Add|Sub|Mul|Div")


class MergeAffine(Pass):
    """Merge what alone reads a convolution, and scales or shifts its channels by constants, into weight and bias.

    Case 1: one factor or summand for all channels. Case 2: one per channel. Case 3: several nodes in a row. Weights are
    of type float, and a weight that several nodes read is not scaled. An addition alone that makes up the bias stays:
    it is the layer's as it is.
    """

    def run(self, view: GraphView) -> PassResult:
        """Rewrite every convolution with such nodes behind it, once for all of them."""
        made: dict[str, list[NodeProto]] = {}
        for layer in view.nodes:
            if not _CONVOLUTIONS.fits(layer) or not all(view.is_weight(n) for n in layer.input[1:] if n):
                continue
            steps = list(_steps(view, layer))
            if not any(is_factor for _, is_factor, _ in steps) or len(view.consumers(layer.input[1])) > 1:
                continue
            scale, shift = np.ones(1), np.zeros(1)
            for _, is_factor, values in steps:
                scale, shift = (scale * values, shift * values) if is_factor else (scale, shift + values)
            scale, shift = (np.broadcast_to(values, _channels(view, layer)) for values in (scale, shift))
            last = steps[-1][0]
            made |= {node_key(node): list[NodeProto]() for node in (layer, *(node for node, _, _ in steps))}
            made[node_key(last)] = [merge_affine(view, layer, scale, shift, last.output[0])]
        return PassResult(view.expand(made))


def _steps(view: GraphView, layer: NodeProto) -> Iterator[tuple[NodeProto, bool, Array]]:
    """Yield the nodes in a row behind a layer, whether they multiply, and the numbers per channel that they apply."""
    node, channels, rank = layer, _channels(view, layer), len(view.weights[layer.input[1]].shape)
    while (reader := only_reader(view, node.output[0])) is not None and _AFFINE.fits(reader):
        place = 1 - list(reader.input).index(node.output[0])
        names = reader.input[place], layer.input[1]
        if not all(view.is_weight(n) and view.weight_type(n) == TensorProto.FLOAT for n in names) or (
            place == 0 and reader.op_type in ("Sub", "Div")
        ):
            return
        values = view.weight(names[0]).astype(np.float64)
        shape = (1,) * (rank - values.ndim) + values.shape
        if len(shape) != rank or shape[1] not in (1, channels) or values.size != shape[1]:
            return
        is_factor, inverse = reader.op_type in ("Mul", "Div"), reader.op_type in ("Sub", "Div")
        if is_factor and not (values.all() and np.isfinite(values).all()):
            return
        numbers = values.reshape(-1)
        yield reader, is_factor, (1.0 / numbers if is_factor else -numbers) if inverse else numbers
        node = reader


def _channels(view: GraphView, layer: NodeProto) -> int:
    """Return the number of channels that a convolution writes."""
    shape = view.weights[layer.input[1]].shape
    return int(shape[0] if layer.op_type == "Conv" else shape[1] * attr_int(layer, "group", 1))
