"""Fuse BatchNormalization into the layer before it.

With s = gamma / sqrt(var + eps), a layer y = W x + b followed by a BatchNormalization computes

    s (W x + b - mean) + beta = (s W) x + (s (b - mean) + beta),

so s scales the rows of W that make a channel, and the bias changes. In float64, rounded once.
"""

from functools import partial

import numpy as np
from onnx import NodeProto, TensorProto

from onnxfold.channels.layers import batch_norm
from onnxfold.graph.nodes import attr_float, attr_int, rewritten
from onnxfold.graph.patterns import Match, Mismatch, chain
from onnxfold.graph.tensors import Array, DerivedTensor, LazyTensor
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Rewrite


class FuseBatchNorm(Rewrite):
    """Merge a BatchNormalization into the Conv, ConvTranspose or Gemm that alone feeds it.

    Case 1: Conv, rows on axis 0. Case 2: ConvTranspose, one group of columns of axis 1 per group. Case 3: Gemm with
    constant B, rows on the axis of its outputs. The layer's result must not be an output, and its parameters and those
    of the normalisation must be weights. Large weights are scaled when they are read.
    """

    patterns = (chain("Conv|ConvTranspose|Gemm", "BatchNormalization"),)

    def replace(self, view: GraphView, match: Match) -> list[NodeProto]:
        """Return the layer that writes what the normalisation wrote."""
        layer, norm = match.nodes
        if attr_int(norm, "training_mode", 0):
            raise Mismatch("it is in training mode")
        if not all(view.is_weight(n) for n in [*norm.input[1:5], *layer.input[1:]] if n):
            raise Mismatch("parameters are computed")
        if len(layer.input) > 2 and layer.input[2]:
            fitting = {view.weight_size(norm.input[1]), *((1,) if layer.op_type == "Gemm" else ())}
            if view.weight_size(layer.input[2]) not in fitting:
                raise Mismatch("the bias is not one number per channel")
        if view.weight_type(layer.input[1]) != TensorProto.FLOAT:
            raise Mismatch("the weight is not of type float")
        normalization = batch_norm(view, norm)
        assert normalization is not None
        names = (normalization.scale, normalization.shift, normalization.mean, normalization.variance)
        gamma, beta, mean, variance = (view.weight(n).astype(np.float64) for n in names)
        scale = gamma / np.sqrt(variance + normalization.epsilon)
        return [merge_affine(view, layer, scale, beta - scale * mean, norm.output[0])]


def merge_affine(view: GraphView, layer: NodeProto, scale: Array, shift: Array, output: str) -> NodeProto:
    """Return a layer that writes scale y + shift in place of its result y, both of shape (channels,) in float64."""
    weight = layer.input[1]
    scaled, old = view.fresh_name(f"{weight}_scaled"), view.weights[weight]
    scale_rows = partial(_scaled, _factors(layer, scale, old.shape))
    made = DerivedTensor.of(old, old.shape, scale_rows) if isinstance(old, LazyTensor) else scale_rows(old)
    view.put_weights({scaled: made})
    bias: Array = np.zeros(len(scale))
    if len(layer.input) > 2 and layer.input[2]:  # times beta of a Gemm; others have none
        bias = view.weight(layer.input[2]).astype(np.float64).reshape(-1) * attr_float(layer, "beta", 1.0)
    inputs = [layer.input[0], scaled, view.add_weight(f"{weight}_bias", (scale * bias + shift).astype(np.float32))]
    return rewritten(layer, inputs=inputs, outputs=[output], without=["beta"])


def _factors(layer: NodeProto, scale: Array, shape: tuple[int, ...]) -> Array:
    """Return the scale in a shape that broadcasts against the weight."""
    if layer.op_type == "Conv":
        return scale.reshape(-1, *[1] * (len(shape) - 1))
    if layer.op_type == "Gemm":
        return scale[:, None] if attr_int(layer, "transB", 0) else scale[None]
    groups = attr_int(layer, "group", 1)
    per_row = np.repeat(scale.reshape(groups, shape[1]), shape[0] // groups, axis=0)
    return per_row.reshape(*per_row.shape, *[1] * (len(shape) - 2))


def _scaled(factors: Array, values: Array) -> Array:
    """Return scaled values, in their type; in float64, but piece by piece: there is no float64 copy of all of them."""
    scaled = np.empty_like(values)
    np.multiply(values, factors, out=scaled, casting="unsafe")
    return scaled
