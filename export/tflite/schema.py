"""Names from the official generated schema: enumerations, option classes, and their operators."""

from functools import cache
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxfold.errors import ExportError
from onnxfold.graph.tensors import Array

#: ONNX element type -> name in TFLite's TensorType. Floats other than float32 are exported as their float32 twin.
ELEMENT_TYPES: dict[int, str] = {
    int(TensorProto.FLOAT): "FLOAT32",
    int(TensorProto.INT64): "INT64",
    int(TensorProto.INT32): "INT32",
    int(TensorProto.INT16): "INT16",
    int(TensorProto.INT8): "INT8",
    int(TensorProto.UINT64): "UINT64",
    int(TensorProto.UINT32): "UINT32",
    int(TensorProto.UINT16): "UINT16",
    int(TensorProto.UINT8): "UINT8",
    int(TensorProto.BOOL): "BOOL",
}

NUMPY_TYPES = {
    "FLOAT32": np.float32,
    "FLOAT16": np.float16,
    "INT64": np.int64,
    "INT32": np.int32,
    "INT16": np.int16,
    "INT8": np.int8,
    "UINT64": np.uint64,
    "UINT32": np.uint32,
    "UINT16": np.uint16,
    "UINT8": np.uint8,
    "BOOL": np.bool_,
}

_BINARY = ("ADD", "SUB", "MUL", "DIV")
_REDUCERS = ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "REDUCE_ANY", "REDUCE_ALL")

#: Operators whose kernels read options, and the name of the options.
OPTIONS = {
    **{name: f"{name.capitalize()}Options" for name in _BINARY},
    **dict.fromkeys(_REDUCERS, "ReducerOptions"),
    **dict.fromkeys(("AVERAGE_POOL_2D", "MAX_POOL_2D"), "Pool2DOptions"),
    "ARG_MAX": "ArgMaxOptions",
    "ARG_MIN": "ArgMinOptions",
    "BATCH_MATMUL": "BatchMatMulOptions",
    "CAST": "CastOptions",
    "CONCATENATION": "ConcatenationOptions",
    "CONV_2D": "Conv2DOptions",
    "CONV_3D": "Conv3DOptions",
    "CUMSUM": "CumsumOptions",
    "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions",
    "DEPTH_TO_SPACE": "DepthToSpaceOptions",
    "FULLY_CONNECTED": "FullyConnectedOptions",
    "GATHER": "GatherOptions",
    "GELU": "GeluOptions",
    "LEAKY_RELU": "LeakyReluOptions",
    "MIRROR_PAD": "MirrorPadOptions",
    "ONE_HOT": "OneHotOptions",
    "PACK": "PackOptions",
    "SHAPE": "ShapeOptions",
    "RESHAPE": "ReshapeOptions",
    "RESIZE_BILINEAR": "ResizeBilinearOptions",
    "RESIZE_NEAREST_NEIGHBOR": "ResizeNearestNeighborOptions",
    "SOFTMAX": "SoftmaxOptions",
    "SPACE_TO_DEPTH": "SpaceToDepthOptions",
    "SPLIT": "SplitOptions",
    "SPLIT_V": "SplitVOptions",
    "STRIDED_SLICE": "StridedSliceOptions",
    "TOPK_V2": "TopKV2Options",
    "TRANSPOSE_CONV": "TransposeConvOptions",
}

#: Operators that carry out a RELU, RELU6 or RELU_N1_TO_1 on their result by themselves.
ACTIVATES = frozenset(
    {*_BINARY, "CONV_2D", "CONV_3D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "MAX_POOL_2D", "AVERAGE_POOL_2D"}
)


@cache
def schema() -> Any:
    """Return the module of generated classes."""
    try:
        from ai_edge_litert import schema_py_generated
    except ImportError:
        raise ExportError(
            "the TFLite schema comes with ai-edge-litert, not installed: pip install ai-edge-litert flatbuffers"
        ) from None
    return schema_py_generated


def code_of(operator: str) -> int:
    """Return the number of a builtin operator."""
    return int(getattr(schema().BuiltinOperator, operator))


def type_of(element_type: str) -> int:
    """Return the number of an element type."""
    return int(getattr(schema().TensorType, element_type))


def element_type_of(values: Array) -> str:
    """Return the element type that holds an array's values."""
    return next(name for name, dtype in NUMPY_TYPES.items() if values.dtype == dtype)


def make_options(operator: str, settings: dict[str, Any]) -> tuple[int, Any]:
    """Return the union tag and the filled options of an operator; (0, None) where it has none."""
    name = OPTIONS.get(operator)
    if name is None:
        return 0, None
    options = getattr(schema(), f"{name}T")()
    for key, value in settings.items():
        if not hasattr(options, key):
            raise AttributeError(f"{name} has no field '{key}'")
        setattr(options, key, value)
    return int(getattr(schema().BuiltinOptions, name)), options
