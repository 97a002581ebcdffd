"""Fuse BatchNormalization into the layer before it.

With s = gamma / sqrt(var + eps), a layer y = W x + b followed by a BatchNormalization computes

    s (W x + b - mean) + beta = (s W) x + (s (b - mean) + beta),

so s scales the rows of W that make a channel, and the bias changes. In float64, rounded once.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto

from onnxfold.channels.layers import batch_norm
from onnxfold.graph.nodes import attr_float, attr_int, node_key, rewritten
from onnxfold.graph.patterns import only_reader
from onnxfold.graph.tensors import Array, LazyTensor, to_proto
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult


@dataclass(frozen=True)
class ScaledWeight(LazyTensor):
    """A weight whose positions along one axis are scaled when it is read."""

    base: LazyTensor | Array | None = None  # the weight as it is stored
    factors: Any = None  # shape that broadcasts against the weight, float64

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions."""
        assert self.base is not None
        return tuple(self.base.shape)

    @property
    def is_external(self) -> bool:
        """Values come from the base, wherever that is."""
        return False

    def load(self) -> Array:
        """Return the scaled values, in the stored type."""
        assert self.base is not None
        values = self.base.load() if isinstance(self.base, LazyTensor) else self.base
        scaled = np.empty_like(values)
        # In float64, but piece by piece: no float64 copy of the whole weight.
        np.multiply(values, self.factors, out=scaled, casting="unsafe")
        return scaled


@dataclass(frozen=True)
class FuseBatchNorm(Pass):
    """Merge a BatchNormalization into the Conv, ConvTranspose or Gemm that alone feeds it.

    Case 1: Conv, rows on axis 0. Case 2: ConvTranspose, one group of columns of axis 1 per group. Case 3: Gemm with
    constant B, rows on the axis of its outputs. The layer's result must not be an output, and its parameters and those
    of the normalisation must be weights. Large weights are scaled when they are read.
    """

    def run(self, view: GraphView) -> PassResult:
        """Merge all there are."""
        merged: dict[str, NodeProto] = {}
        gone: set[str] = set()
        for norm in view.nodes:
            layer = _layer(view, norm) if norm.op_type == "BatchNormalization" else None
            if layer is not None:
                merged[node_key(layer)] = _merge(view, layer, norm)
                gone.add(node_key(norm))
        return PassResult(view.substitute(merged, gone))


def _layer(view: GraphView, norm: NodeProto) -> NodeProto | None:
    if attr_int(norm, "training_mode", 0) or not all(view.is_weight(n) for n in norm.input[1:5]):
        return None
    layer = view.producer(norm.input[0])
    if layer is None or layer.op_type not in ("Conv", "ConvTranspose", "Gemm") or layer.domain not in ("", "ai.onnx"):
        return None
    if only_reader(view, layer.output[0]) is None:
        return None
    if not all(view.is_weight(n) for n in layer.input[1:] if n):
        return None
    if len(layer.input) > 2 and layer.input[2]:
        fitting = {view.weight_size(norm.input[1]), *((1,) if layer.op_type == "Gemm" else ())}
        if view.weight_size(layer.input[2]) not in fitting:
            return None
    if view.weight_type(layer.input[1]) != TensorProto.FLOAT:
        return None
    return layer


def _merge(view: GraphView, layer: NodeProto, norm: NodeProto) -> NodeProto:
    """Return the layer that writes what the normalisation wrote."""
    normalization = batch_norm(view, norm)
    assert normalization is not None
    names = (normalization.scale, normalization.shift, normalization.mean, normalization.variance)
    gamma, beta, mean, variance = (view.weight(n).astype(np.float64) for n in names)
    scale = gamma / np.sqrt(variance + normalization.epsilon)
    weight = layer.input[1]
    factors = _factors(layer, scale, view.weights[weight].shape)
    scaled = _scale_weight(view, weight, factors)
    bias: Array = np.zeros(len(scale))
    if len(layer.input) > 2 and layer.input[2]:
        bias = view.weight(layer.input[2]).astype(np.float64).reshape(-1)
        if layer.op_type == "Gemm":
            bias = bias * attr_float(layer, "beta", 1.0)
    values = (scale * (bias - mean) + beta).astype(np.float32)
    inputs = [layer.input[0], scaled, view.add_weight(f"{weight}_bias", values)]
    return rewritten(layer, inputs=inputs, outputs=norm.output[:1], without=["beta"] * (layer.op_type == "Gemm"))


def _factors(layer: NodeProto, scale: Array, shape: tuple[int, ...]) -> Array:
    """Return the scale in a shape that broadcasts against the weight."""
    if layer.op_type == "Conv":
        return scale.reshape(-1, *[1] * (len(shape) - 1))
    if layer.op_type == "Gemm":
        return scale[:, None] if attr_int(layer, "transB", 0) else scale[None]
    groups = attr_int(layer, "group", 1)
    per_row = np.repeat(scale.reshape(groups, shape[1]), shape[0] // groups, axis=0)
    return per_row.reshape(*per_row.shape, *[1] * (len(shape) - 2))


def _scale_weight(view: GraphView, weight: str, factors: Array) -> str:
    name = view.fresh_name(f"{weight}_scaled")
    stub = to_proto("", np.zeros(0, np.float32))  # without the weight's name it is never written in its place
    view.put_weights({name: ScaledWeight(stub, base=view.weights[weight], factors=factors)})
    return name
