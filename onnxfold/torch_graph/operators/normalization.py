"""Normalisations, in inference mode."""

import torch
from torch import Tensor
from torch.nn.functional import group_norm, instance_norm, layer_norm, normalize

from onnxfold.torch_graph.operators.pooling import pad_spatial
from onnxfold.torch_graph.registry import Operation, TorchNode, operation, operations, operator


@operator("BatchNormalization")
def batch_normalization(node: TorchNode) -> Operation:
    """Normalise channels by the running statistics."""
    if node.integer("training_mode", 0) or node.has_output(1):
        raise node.unsupported("it is in training mode; export the model in evaluation mode")
    if not node.integer("spatial", 1):
        raise node.unsupported("it has statistics per position")
    epsilon = node.number("epsilon", 1e-5)
    return lambda x, scale, shift, mean, variance: torch.batch_norm(
        x, scale, shift, mean, variance, False, 0.0, epsilon, False
    )


operations({
    "InstanceNormalization": lambda x, scale, shift, *, epsilon=1e-5: (
        instance_norm(x, weight=scale, bias=shift, eps=epsilon)
    ),
    "LpNormalization": lambda x, *, axis=-1, p=2: normalize(x, p, axis, torch.finfo(x.dtype).tiny),
})  # fmt: skip


@operator("LayerNormalization")
def layer_normalization(node: TorchNode) -> Operation:
    """Normalise over the last axes."""
    axis, epsilon, outputs = node.integer("axis", -1), node.number("epsilon", 1e-5), len(node.outputs)

    def run(x: Tensor, scale: Tensor, shift: Tensor | None = None) -> Tensor | tuple[Tensor, ...]:
        first = axis % x.ndim
        y = layer_norm(x, x.shape[first:], eps=epsilon) * scale
        y = y if shift is None else y + shift
        if outputs == 1:
            return y
        variance, mean = torch.var_mean(x, list(range(first, x.ndim)), correction=0, keepdim=True)
        return y, mean, torch.rsqrt(variance + epsilon)

    return run


@operation("GroupNormalization", since=18)
def group_normalization(
    x: Tensor, scale: Tensor, shift: Tensor, *, num_groups: int = 1, epsilon: float = 1e-5
) -> Tensor:
    """Normalise groups of channels; scale and shift have an entry per group, from version 21 on one per channel."""
    each = x.shape[1] // len(scale)
    return group_norm(x, num_groups, scale.repeat_interleave(each), shift.repeat_interleave(each), epsilon)


@operator("RMSNormalization", "SimplifiedLayerNormalization")
def rms_normalization(node: TorchNode) -> Operation:
    """Divide by the root mean square over the last axes."""
    if node.has_output(1):
        raise node.unsupported("its second output is read")
    axis, epsilon = node.integer("axis", -1), node.number("epsilon", 1e-5)
    return lambda x, scale: _rms(x, axis, epsilon) * scale


@operator("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain="com.microsoft")
def skip_normalization(node: TorchNode) -> Operation:
    """Norm of the sum of two streams over the last axis, by deviation or by root mean square; and the sum."""
    if node.has_output(1) or node.has_output(2):
        raise node.unsupported("its mean or deviation is read")
    epsilon, is_layer_norm = node.number("epsilon", 1e-5), node.op_type == "SkipLayerNormalization"

    def run(x: Tensor, skip: Tensor, scale: Tensor, *vectors: Tensor | None) -> tuple[Tensor | None, ...]:
        shift, bias = (*vectors, None, None)[:2] if is_layer_norm else (None, *vectors, None)[:2]
        total = x + skip if bias is None else x + skip + bias
        if is_layer_norm:
            return layer_norm(total, total.shape[-1:], scale, shift, epsilon), None, None, total
        return _rms(total, -1, epsilon) * scale, None, None, total

    return run


@operation("MeanVarianceNormalization")
def mean_variance_normalization(x: Tensor, *, axes: tuple[int, ...] = (0, 2, 3)) -> Tensor:
    """Zero mean and unit variance over some axes."""
    variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    return (x - mean) / (variance.sqrt() + 1e-9)


@operation("LRN")
def local_response_normalization(
    x: Tensor, *, size: int = 1, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Tensor:
    """Divide by a power of the mean square over neighbouring channels."""
    before, spatial = (size - 1) // 2, [0] * (x.ndim - 2)
    square = pad_spatial(x * x, [before, *spatial], [size - 1 - before, *spatial], 0.0)
    total = sum(square.narrow(1, i, x.shape[1]) for i in range(size))
    return x / (bias + alpha / size * total) ** beta


def _rms(x: Tensor, axis: int, epsilon: float) -> Tensor:
    axes = list(range(axis % x.ndim, x.ndim))
    return x * torch.rsqrt((x * x).mean(axes, keepdim=True) + epsilon)
