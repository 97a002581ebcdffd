"""A TFLite graph under construction: values and operators, numbered when they are written; weights as float16."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Any

import numpy as np
from onnx.helper import np_dtype_to_tensor_dtype

from onnxfold.errors import ExportError
from onnxfold.export.tflite.layout import Dynamic, Shape, keeps_order, plain
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
    "SPLIT_V", "STRIDED_SLICE", "TOPK_V2", "TRANSPOSE_CONV", "FAKE_QUANT",
)  # fmt: skip
#: Operators whose kernels read options, and the name of the options in lower case.
_OPTIONS = {
    **{code: f"{code.replace('_', '').lower()}options" for code in _OWN_OPTIONS},
    **dict.fromkeys(_REDUCERS, "reduceroptions"),
    **dict.fromkeys(("AVERAGE_POOL_2D", "MAX_POOL_2D"), "pool2doptions"),
}

#: Options that are names in an enumeration of the schema.
_NAMED = {
    "padding": "Padding", "mode": "MirrorPadMode", "fusedActivationFunction": "ActivationFunctionType",
    **dict.fromkeys(("inDataType", "outDataType", "outType", "outputType"), "TensorType"),
}  # fmt: skip

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


def number_of(kind: str, name: str) -> int:
    """Return the number of a name in an enumeration of the schema."""
    return int(getattr(getattr(schema(), kind), name))


def make_options(operator: str, settings: dict[str, Any]) -> tuple[int, Any]:
    """Return the union tag and the filled options of an operator; (0, None) where it has none."""
    wanted = _OPTIONS.get(operator)
    if wanted is None:
        return 0, None
    name, tag = next((name, tag) for name, tag in vars(schema().BuiltinOptions).items() if name.lower() == wanted)
    numbers = {n: number_of(_NAMED[n], value) if n in _NAMED else value for n, value in settings.items()}
    return int(tag), table(name, **numbers)


def table(kind: str, **fields: Any) -> Any:
    """Return a table of the schema with some fields set."""
    made = getattr(schema(), f"{kind}T")()
    for name, value in fields.items():
        if not hasattr(made, name):
            raise AttributeError(f"{kind} has no field '{name}'")
        setattr(made, name, value)
    return made


#: Constants up to this many bytes are kept; larger ones are computed when they are written.
_KEPT_BYTES = 1 << 12


@dataclass(eq=False)
class Value:
    """A tensor: an activation, or a constant."""

    shape: Shape  # dimensions in TFLite's order; those of the class Dynamic are free at run time
    element_type: str  # name in TFLite's TensorType
    name: str = ""  # name; made unique when it is written
    load: Callable[[], Array] | None = field(default=None, repr=False)  # returns a constant's values

    @property
    def is_constant(self) -> bool:
        """Whether the values are part of the file."""
        return self.load is not None

    @property
    def size_bytes(self) -> int:
        """Bytes of the values for a batch of one."""
        return prod(self.shape) * NUMPY_TYPES[self.element_type].itemsize

    def values(self) -> Array:
        """Return a constant's values, contiguous."""
        assert self.load is not None
        return np.ascontiguousarray(self.load()).reshape(self.shape)


@dataclass(eq=False)
class Operator:
    """A builtin operator; none is written that leaves an input out."""

    code: str
    inputs: list[Value]
    outputs: list[Value]
    options: dict[str, Any]
    version: int = 1

    def constant(self, index: int) -> Array:
        """Return the values of an input that is a constant."""
        return self.inputs[index].values()


class Graph:
    """Values and operators in the order of execution."""

    def __init__(self) -> None:
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.operators: list[Operator] = []
        self._small: dict[tuple[str, Shape, bytes], Value] = {}

    def constant(self, values: Array | Sequence[int], name: str = "", dtype: Any = None) -> Value:
        """Return a constant; small equal ones are one."""
        array = np.asarray(values, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if array.nbytes <= _KEPT_BYTES and key in self._small:
            return self._small[key]
        element_type = next(name for name, dtype in NUMPY_TYPES.items() if array.dtype == dtype)
        value = Value(array.shape, element_type, name or "constant", lambda: array)
        if array.nbytes <= _KEPT_BYTES:
            self._small[key] = value
        return value

    def indices(self, values: Iterable[int]) -> Value:
        """Return a constant of type int32: axes, shapes, paddings."""
        return self.constant(list(values), dtype=np.int32)

    def op(
        self, code: str, inputs: Sequence[Value], shape: Shape, element_type: str = "", *, name: str = "",
        version: int = 1, **options: Any,
    ) -> Value:  # fmt: skip
        """Append an operator with one output; its type is that of the first input unless given."""
        output = Value(tuple(shape), element_type or inputs[0].element_type, name or code.lower())
        self._append(Operator(code, list(inputs), [output], options, version))
        return output

    def op_several(
        self, code: str, inputs: Sequence[Value], shapes: Sequence[Shape], element_types: Sequence[str], **options: Any
    ) -> list[Value]:
        """Append an operator with several outputs."""
        kinds = enumerate(zip(shapes, element_types, strict=True))
        outputs = [Value(tuple(shape), kind, f"{code.lower()}_{i}") for i, (shape, kind) in kinds]
        self._append(Operator(code, list(inputs), outputs, options))
        return outputs

    def _append(self, op: Operator) -> None:
        """Append an operator whose options fit into 32 bits: writing the file would fail and not say whose it is."""
        numbers = (n for value in op.options.values() for n in (value if isinstance(value, list | tuple) else [value]))
        if any(isinstance(n, int) and not -(2**31) <= n < 2**31 for n in numbers):
            raise OverflowError("an option does not fit into 32 bits")
        self.operators.append(op)

    def reshape(self, x: Value, shape: Shape) -> Value:
        """Append a RESHAPE unless the shape is already that."""
        if same_shape(x.shape, shape):
            return x
        if x.is_constant:
            return Value(tuple(shape), x.element_type, x.name, x.load)
        return self.copy(x, shape)

    def copy(self, x: Value, shape: Shape) -> Value:
        """Append a RESHAPE, even to the same shape: a separate tensor with the same values."""
        return self.op("RESHAPE", [x, self.indices(target(shape))], shape, newShape=target(shape))

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        """Append a TRANSPOSE, a RESHAPE where only axes of size 1 move, nothing where none does."""
        perm = tuple(perm)
        if perm == tuple(range(len(perm))):
            return x
        shape = tuple(x.shape[p] for p in perm)
        load = x.load
        if load is not None:
            before = x.shape
            return Value(shape, x.element_type, x.name, lambda: load().reshape(before).transpose(perm))
        moved = [p for p in perm if not is_one(x.shape[p])]
        if moved == sorted(moved) and keeps_order(x.shape, plain(len(perm)), shape, plain(len(perm))):
            return self.reshape(x, shape)
        return self.op("TRANSPOSE", [x, self.indices(perm)], shape)

    def split(self, x: Value, axis: int, count: int) -> list[Value]:
        """Append a SPLIT into equal parts unless there is one part alone."""
        if count == 1:
            return [x]
        shape = tuple(int(d) // count if i == axis else d for i, d in enumerate(x.shape))
        inputs = [self.constant(np.array(axis, np.int32)), x]
        return self.op_several("SPLIT", inputs, [shape] * count, [x.element_type] * count, numSplits=count)

    def concatenate(self, parts: Sequence[Value], axis: int) -> Value:
        """Append a CONCATENATION unless there is one part alone."""
        if len(parts) == 1:
            return parts[0]
        sizes = [part.shape[axis] for part in parts]
        size = (Dynamic if any(isinstance(d, Dynamic) for d in sizes) else int)(sum(sizes))
        shape = tuple(size if i == axis else d for i, d in enumerate(parts[0].shape))
        return self.op("CONCATENATION", parts, shape, axis=axis)

    def cast(self, x: Value, element_type: str) -> Value:
        """Append a CAST unless the type is already that."""
        if x.element_type == element_type:
            return x
        if x.is_constant:
            return self.constant(x.values().astype(NUMPY_TYPES[element_type]), x.name)
        return self.op("CAST", [x], x.shape, element_type, inDataType=x.element_type, outDataType=element_type)


def target(shape: Shape) -> list[int]:
    """Return the target of a RESHAPE to this shape: -1 for the first dynamic dimension."""
    free = next((i for i, d in enumerate(shape) if isinstance(d, Dynamic)), None)
    return [-1 if i == free else int(d) for i, d in enumerate(shape)]


def same_shape(a: Shape, b: Shape) -> bool:
    """Whether sizes and which of them are dynamic agree."""
    return [(int(d), isinstance(d, Dynamic)) for d in a] == [(int(d), isinstance(d, Dynamic)) for d in b]


def is_one(size: int) -> bool:
    """Whether a dimension is 1 at run time, too."""
    return int(size) == 1 and not isinstance(size, Dynamic)


#: Constants of fewer elements stay: their DEQUANTIZE would cost more than it saves.
_SMALLEST = 256


def store_as_float16(graph: Graph) -> None:
    """Replace float32 weights by float16 ones, each followed by a DEQUANTIZE.

    Weights with values outside of float16's range stay as they are.
    """
    constants = dict.fromkeys(v for op in graph.operators for v in op.inputs if v.is_constant)
    large = [v for v in constants if v.element_type == "FLOAT32" and prod(v.shape) >= _SMALLEST]
    narrow = [v for v in large if not np.abs(v.values()).max() > np.finfo(np.float16).max]
    wide = {v: Value(v.shape, "FLOAT32", v.name) for v in narrow}
    for op in graph.operators:
        op.inputs[:] = [wide.get(v, v) for v in op.inputs]
    graph.operators[:0] = [Operator("DEQUANTIZE", [_half(v)], [result], {}) for v, result in wide.items()]


def _half(value: Value) -> Value:
    return Value(value.shape, "FLOAT16", f"{value.name}_float16", lambda: value.values().astype(np.float16))
