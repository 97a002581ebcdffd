"""Models with weights of few bits, as onnxruntime's quantiser writes them."""

from __future__ import annotations

import onnx
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer


def in_few_bits(
    model: onnx.ModelProto, *, bits: int = 4, block_size: int = 16, symmetric: bool = True
) -> onnx.ModelProto:
    """Return a model whose products with constant matrices are MatMulNBits."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    quantizer = MatMulNBitsQuantizer(copy, bits=bits, block_size=block_size, is_symmetric=symmetric)
    quantizer.process()
    made: onnx.ModelProto = quantizer.model.model
    return made
