"""Refusals of models that cannot be quantised, before any work."""

from collections.abc import Sequence

from onnx import TensorProto

from onnxfold.channels.layers import linear_weights
from onnxfold.config.quantities import show_bytes
from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.files.save import PROTOBUF_LIMIT, weight_bytes
from onnxfold.graph.nodes import node_key
from onnxfold.graph.quantized import is_quantized
from onnxfold.graph.view import GraphView
from onnxfold.quantize.block_weights import BlockWeight


def require_quantizable(view: GraphView, blocks: Sequence[BlockWeight] = ()) -> None:
    """Refuse models that int8 makes no sense for, or that onnxruntime's quantiser cannot read."""
    done = next((node for node in (*(block.node for block in blocks), *view.nodes) if is_quantized(node)), None)
    if done is not None:
        raise UnsupportedModelError(
            f"dtype='int8': the model is quantised already, see {done.op_type} '{done.name or node_key(done)}': "
            "give the float32 model"
        )
    weights = linear_weights(view)
    if not weights:
        raise UnsupportedModelError(
            "dtype='int8': there is nothing to quantise, since no Conv, Gemm or MatMul of the main graph has constant "
            "weights"
        )
    other = next((name for name in weights if view.weight_type(name) != TensorProto.FLOAT), None)
    if other is not None:
        type_name = TensorProto.DataType.Name(view.weight_type(other)).lower()
        raise UnsupportedModelError(
            f"dtype='int8' quantises float32 models, and weight '{other}' is {type_name}: convert the model to float32"
        )


def require_small(view: GraphView) -> None:
    """Refuse a model of over 2 GB."""
    size = weight_bytes(view)
    if size > PROTOBUF_LIMIT:
        raise UnsupportedModelError(
            f"dtype='int8': the model has {show_bytes(size)} of float32 weights, and onnxruntime's quantiser takes "
            f"{show_bytes(PROTOBUF_LIMIT)}: fold it further, or fold without dtype"
        )
