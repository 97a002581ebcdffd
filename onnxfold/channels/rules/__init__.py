"""One file per operator family; importing this package registers them all."""

from onnxfold.channels.rules import (
    batch_normalization,
    broadcast,
    concat,
    conv,
    conv_transpose,
    elementwise,
    gemm,
    matmul,
    pad,
    pooling,
    reduce,
    reshape,
    shape,
    squeeze,
    transpose,
)

__all__ = [
    "batch_normalization",
    "broadcast",
    "concat",
    "conv",
    "conv_transpose",
    "elementwise",
    "gemm",
    "matmul",
    "pad",
    "pooling",
    "reduce",
    "reshape",
    "shape",
    "squeeze",
    "transpose",
]
