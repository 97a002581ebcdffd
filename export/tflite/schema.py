"""Names from the official generated schema: enumerations, option classes, and their operators."""

from functools import cache
from typing import Any

import numpy as np
from onnx.helper import np_dtype_to_tensor_dtype

from onnxfold.errors import ExportError
from onnxfold.graph.tensors import Array

#: Names in TFLite's TensorType -> numpy's types.
NUMPY_TYPES = {
    name: np.dtype(name.lower())
    for name in (
        "FLOAT32", "FLOAT16", "INT64", "INT32", "INT16", "INT8", "UINT64", "UINT32", "UINT16", "UINT8", "BOOL",
    )
}  # fmt: skip

#: ONNX element type -> name in TFLite's TensorType. Floats other than float32 are exported as their float32 twin.
ELEMENT_TYPES: dict[int, str] = {
    int(np_dtype_to_tensor_dtype(dtype)): name for name, dtype in NUMPY_TYPES.items() if name != "FLOAT16"
}

_BINARY = ("ADD", "SUB", "MUL", "DIV")
_REDUCERS = ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "REDUCE_ANY", "REDUCE_ALL")
#: Operators whose options are called like them: CONV_2D has Conv2DOptions.
_OWN_OPTIONS = (
    *_BINARY, "ARG_MAX", "ARG_MIN", "BATCH_MATMUL", "CAST", "CONCATENATION", "CONV_2D", "CONV_3D", "CUMSUM",
    "DEPTHWISE_CONV_2D", "DEPTH_TO_SPACE", "FULLY_CONNECTED", "GATHER", "GELU", "LEAKY_RELU", "MIRROR_PAD", "ONE_HOT",
    "SHAPE", "RESHAPE", "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "SOFTMAX", "SPACE_TO_DEPTH", "SPLIT",
    "SPLIT_V", "STRIDED_SLICE", "TOPK_V2", "TRANSPOSE_CONV",
)  # fmt: skip
#: Operators whose kernels read options, and the name of the options in lower case.
_OPTIONS = {
    **{code: f"{code.replace('_', '').lower()}options" for code in _OWN_OPTIONS},
    **dict.fromkeys(_REDUCERS, "reduceroptions"),
    **dict.fromkeys(("AVERAGE_POOL_2D", "MAX_POOL_2D"), "pool2doptions"),
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
    wanted = _OPTIONS.get(operator)
    if wanted is None:
        return 0, None
    name, tag = next((name, tag) for name, tag in vars(schema().BuiltinOptions).items() if name.lower() == wanted)
    options = getattr(schema(), f"{name}T")()
    for key, value in settings.items():
        if not hasattr(options, key):
            raise AttributeError(f"{name} has no field '{key}'")
        setattr(options, key, value)
    return int(tag), options
