"""Small ONNX graphs built without torch: input "x", output "y", one function per channel pattern."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from testing.graph_builder import GraphBuilder

Array = NDArray[Any]
IMAGE: Final = (3, 8, 8)


def _finish(g: GraphBuilder, y: str) -> onnx.ModelProto:
    g.output(y)
    return g.build()


def chain_conv(seed: int, widths: tuple[int, ...] = (6, 8), bn: bool = True) -> onnx.ModelProto:
    g = GraphBuilder("chain_conv", seed, IMAGE)
    h = "x"
    for width in widths:
        h = g.relu(g.conv_bn(h, width, bn=bn))
    return _finish(g, g.head(h))


def mlp(seed: int, widths: tuple[int, ...] = (12, 10), bn: bool = False) -> onnx.ModelProto:
    g = GraphBuilder("mlp", seed, (7,))
    h = "x"
    for width in widths:
        h = g.gemm(h, width)
        h = g.relu(g.batch_norm(h) if bn else h)
    return _finish(g, g.gemm(h, 5))


def residual(seed: int, width: int = 8, bn: bool = True) -> onnx.ModelProto:
    g = GraphBuilder("residual", seed, IMAGE)
    h = g.relu(g.conv_bn(x="x", out_channels=width, bn=bn))
    for outputs, stride in ((width, 1), (2 * width, 2)):
        branch = g.relu(g.conv_bn(h, outputs, bn=bn, stride=stride))
        branch = g.conv_bn(branch, outputs, bn=bn)
        skip = h if stride == 1 else g.conv_bn(h, outputs, 1, bn=bn, stride=stride)
        h = g.relu(g.add(branch, skip))
    return _finish(g, g.head(h))


def preact_residual(seed: int, width: int = 8) -> onnx.ModelProto:
    g = GraphBuilder("preact_residual", seed, IMAGE)
    h = g.conv("x", width, bias=False)
    for _ in range(2):
        branch = g.conv_bn(g.relu(g.batch_norm(h)), width)
        h = g.add(h, g.conv(g.relu(branch), width))
    return _finish(g, g.head(g.relu(g.batch_norm(h))))


def depthwise_separable(seed: int, multiplier: int = 1, width: int = 6) -> onnx.ModelProto:
    g = GraphBuilder("depthwise_separable", seed, IMAGE)
    h = g.relu6(g.conv_bn("x", width))
    h = g.relu6(g.conv_bn(h, width * multiplier, groups=width))
    h = g.relu6(g.conv_bn(h, 2 * width, 1))
    return _finish(g, g.head(h))


def grouped_conv(seed: int, groups: int = 2, width: int = 6) -> onnx.ModelProto:
    g = GraphBuilder("grouped_conv", seed, IMAGE)
    h = g.relu(g.conv("x", width * groups))
    h = g.relu(g.conv_bn(h, width * groups, groups=groups))
    return _finish(g, g.head(g.relu(g.conv(h, 8, 1))))


def concat_net(seed: int) -> onnx.ModelProto:
    g = GraphBuilder("concat_net", seed, IMAGE)
    stem = g.relu(g.conv_bn("x", 6))
    # Branches of unequal width, so that an offset that is off by a branch shows.
    left = g.relu(g.conv(stem, 6))
    right = g.relu(g.conv_bn(stem, 8, 1))
    return _finish(g, g.head(g.relu(g.conv(g.concat(left, right), 8))))


def dense_net(seed: int, growth: int = 6) -> onnx.ModelProto:
    g = GraphBuilder("dense_net", seed, IMAGE)
    h = g.conv("x", 8)
    for _ in range(2):
        for _ in range(2):
            h = g.concat(h, g.conv(g.relu(g.batch_norm(h)), growth, bias=False))
        h = g.average_pool(g.conv(g.relu(g.batch_norm(h)), 10, 1, bias=False))
    return _finish(g, g.head(g.relu(g.batch_norm(h))))


def squeeze_excite(seed: int, width: int = 8) -> onnx.ModelProto:
    g = GraphBuilder("squeeze_excite", seed, IMAGE)
    h = g.relu(g.conv_bn("x", width))
    gate = g.relu(g.conv(g.global_average_pool(h), 6, 1))
    h = g.mul(h, g.sigmoid(g.conv(gate, width, 1)))
    return _finish(g, g.head(g.relu(g.conv_bn(h, 8))))


def flatten_conv(seed: int) -> onnx.ModelProto:
    g = GraphBuilder("flatten_conv", seed, IMAGE)
    h = g.max_pool(g.relu(g.conv_bn("x", 6)))
    h = g.flatten(g.relu(g.conv(h, 8, stride=2)))
    return _finish(g, g.gemm(g.relu(g.gemm(h, 10)), 5))


def nhwc_tail(seed: int) -> onnx.ModelProto:
    g = GraphBuilder("nhwc_tail", seed, (3, 6, 4))
    h = g.relu(g.conv(g.relu(g.conv("x", 6)), 8, stride=2))
    c, height, width = g.shapes[h]
    h = g.node("Transpose", [h], [height, width, c], perm=[0, 2, 3, 1])
    # tf2onnx writes the batch as -1 and the flattened size as a number.
    target = g.constant("reshape_shape", np.array([-1, height * width * c], np.int64))
    h = g.node("Reshape", [h, target], [height * width * c])
    return _finish(g, g.gemm(h, 5, trans_b=False))


def autoencoder(seed: int) -> onnx.ModelProto:
    g = GraphBuilder("autoencoder", seed, IMAGE)
    h = g.relu(g.conv_bn("x", 6, stride=2))
    h = g.relu(g.conv(h, 10, stride=2))
    h = g.relu(g.batch_norm(g.conv_transpose(h, 8)))
    return _finish(g, g.sigmoid(g.conv_transpose(h, 3)))


def conv1d(seed: int) -> onnx.ModelProto:
    g = GraphBuilder("conv1d", seed, (3, 16))
    h = g.max_pool(g.relu(g.conv_bn("x", 6)))
    return _finish(g, g.head(g.relu(g.conv(h, 8))))


def conv3d(seed: int) -> onnx.ModelProto:
    g = GraphBuilder("conv3d", seed, (2, 4, 6, 6))
    h = g.max_pool(g.relu(g.conv_bn("x", 6)))
    return _finish(g, g.head(g.relu(g.conv(h, 8))))


def prelu_net(seed: int) -> onnx.ModelProto:
    g = GraphBuilder("prelu_net", seed, IMAGE)
    h = g.prelu(g.conv_bn("x", 6))
    h = g.prelu(g.conv(h, 8), shared=True)
    return _finish(g, g.head(h))


def two_outputs(seed: int) -> onnx.ModelProto:
    """Outputs "y" (logits) and "features", an inner feature map whose channels must stay as they are."""
    g = GraphBuilder("two_outputs", seed, IMAGE)
    h = g.relu(g.conv_bn("x", 6))
    features = g.relu(g.conv_bn(h, 8))
    y = g.head(g.relu(g.conv(features, 8)))
    g.output(y)
    g.output(features, "features")
    return g.build()


def matmul_bias_net(seed: int, sequence: int | None = None) -> onnx.ModelProto:
    """MatMul + Add layers on [N, C], or on [N, sequence, C]."""
    g = GraphBuilder("matmul_bias_net", seed, (7,) if sequence is None else (sequence, 7))
    h = g.relu(g.matmul_add("x", 12))
    h = g.relu(g.matmul_add(h, 10, bias_first=True))
    return _finish(g, g.matmul_add(h, 5))


def gemm_variants(seed: int) -> onnx.ModelProto:
    g = GraphBuilder("gemm_variants", seed, (7,))

    def transposed(tensor: str) -> str:
        # The tracked shape has no batch axis, so it does not change: [features] either way round.
        return g.node("Transpose", [tensor], g.shapes[tensor], perm=[1, 0])

    h = g.relu(g.gemm("x", 12, alpha=0.5, beta=2.0))
    h = g.relu(g.gemm(h, 10, trans_b=False, bias=None))
    h = g.relu(g.gemm(transposed(h), 12, trans_a=True, bias=(1, -1)))
    h = g.relu(g.gemm(transposed(h), 10, trans_a=True, trans_b=False, alpha=1.5, beta=0.5, bias=()))
    h = g.relu(g.gemm(h, 8, bias=(1,)))
    return _finish(g, g.gemm(h, 5, trans_b=False, beta=0.0))


ALL_MODELS: Final[dict[str, Callable[[int], onnx.ModelProto]]] = {
    "chain_conv": chain_conv,
    "chain_conv_plain": partial(chain_conv, bn=False),
    "mlp": mlp,
    "mlp_bn": partial(mlp, bn=True),
    "residual": residual,
    "residual_plain": partial(residual, bn=False),
    "preact_residual": preact_residual,
    "depthwise_separable": depthwise_separable,
    "depthwise_multiplier": partial(depthwise_separable, multiplier=2),
    "grouped_conv": grouped_conv,
    "concat_net": concat_net,
    "dense_net": dense_net,
    "squeeze_excite": squeeze_excite,
    "flatten_conv": flatten_conv,
    "nhwc_tail": nhwc_tail,
    "autoencoder": autoencoder,
    "conv1d": conv1d,
    "conv3d": conv3d,
    "prelu_net": prelu_net,
    "two_outputs": two_outputs,
    "matmul_bias_net": matmul_bias_net,
    "matmul_bias_sequence": partial(matmul_bias_net, sequence=4),
    "gemm_variants": gemm_variants,
}


def random_input(model: onnx.ModelProto, seed: int, batch: int = 3) -> dict[str, Array]:
    """One standard normal array per graph input; the first axis is ``batch`` where the graph leaves it open."""
    rng = np.random.default_rng(seed)
    constants = {t.name for t in model.graph.initializer}
    feeds: dict[str, Array] = {}
    for value in model.graph.input:
        if value.name in constants:
            continue
        kind = value.type.tensor_type
        fixed = [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]
        if None in fixed[1:]:
            raise ValueError(f"input {value.name!r} has an open axis besides the batch: {fixed}")
        shape = [batch if size is None else size for size in fixed]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        feeds[value.name] = rng.standard_normal(shape).astype(dtype)
    return feeds


def run(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """All graph outputs from onnxruntime, without graph optimisation so that the nodes run as written."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(y) for y in session.run(None, dict(feeds))]
