"""Single nodes in the forms that the networks of the other tests do not show: operator, inputs, attributes, opset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

Array = NDArray[Any]
_RANDOM = np.random.default_rng(0)


@dataclass(frozen=True)
class Case:
    """A node; inputs that are None are left out, and those that are wrapped in a list are weights."""

    op: str
    inputs: list[Array | list[Array] | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 17
    outputs: int = 1
    domain: str = ""


def _x(*shape: int) -> Array:
    return _RANDOM.standard_normal(shape).astype(np.float32)


def _ints(*values: int) -> list[Array]:
    return [np.array(values, np.int64)]


def _floats(*values: float) -> list[Array]:
    return [np.array(values, np.float32)]


def _scalar(value: float | int | bool, dtype: Any = np.float32) -> list[Array]:
    return [np.array(value, dtype)]


def _tensor(values: Array) -> TensorProto:
    return numpy_helper.from_array(values)


def _conv(shape: tuple[int, ...], weight: tuple[int, ...], **attributes: Any) -> Case:
    channels = weight[0]
    return Case("Conv", [_x(*shape), [_x(*weight)], [_x(channels)]], attributes)


def _deconv(shape: tuple[int, ...], weight: tuple[int, ...], **attributes: Any) -> Case:
    channels = weight[1] * attributes.get("group", 1)
    return Case("ConvTranspose", [_x(*shape), [_x(*weight)], [_x(channels)]], attributes)


def _pool(op: str, shape: tuple[int, ...], opset: int = 17, **attributes: Any) -> Case:
    return Case(op, [_x(*shape)], attributes, opset)


def _resize(shape: tuple[int, ...], scales: tuple[float, ...] = (), sizes: tuple[int, ...] = (), **attrs: Any) -> Case:
    # half_pixel_symmetric came in operator set 19.
    opset = attrs.pop("opset", 13)
    return Case(
        "Resize",
        [_x(*shape), None, _floats(*scales) if scales else None, _ints(*sizes) if sizes else None],
        attrs,
        opset,
    )


_NOTHING = np.zeros((0,), np.float32)
_IDS = np.array([[0, -1], [2, 1]], np.int64)


def _microsoft(op: str, inputs: list[Array | list[Array] | None], outputs: int = 1, **attributes: Any) -> Case:
    return Case(op, inputs, attributes, 17, outputs, "com.microsoft")


def _positions(batch: int, length: int) -> Array:
    return np.tile(np.arange(length, dtype=np.int64), (batch, 1)) + np.arange(batch)[:, None]


def _rotary(*, flat: bool = False, pairs: int = 4, **attributes: Any) -> Case:
    heads = {"num_heads": 3} if flat else {}
    x = _x(2, 5, 24) if flat else _x(2, 3, 5, 8)
    return _microsoft("RotaryEmbedding", [x, _positions(2, 5), [_x(9, pairs)], [_x(9, pairs)]], **heads, **attributes)


def _gqa(*, packed: bool = True, past: int = 0, **attributes: Any) -> Case:
    """Four heads of 16 that share two of keys and values, for one sequence of 5."""
    parts = [_x(1, 5, 128), None, None] if packed else [_x(1, 5, 64), _x(1, 5, 32), _x(1, 5, 32)]
    lengths = [np.array([4 + past], np.int32), [np.array(5 + past, np.int32)]]
    inputs = [*parts, _x(1, 2, past, 16), _x(1, 2, past, 16), *lengths, [_x(12, 8)], [_x(12, 8)]]
    attributes = {"num_heads": 4, "kv_num_heads": 2, **attributes}
    return _microsoft("GroupQueryAttention", inputs, outputs=3, **attributes)


NODES: dict[str, Case] = {
    "conv-1d": _conv((2, 4, 9), (6, 2, 3), group=2, pads=[2, 0], strides=[2]),
    "conv-one-column": _conv((2, 4, 9, 1), (6, 2, 3, 1), group=2, pads=[2, 0, 1, 0], strides=[2, 3], dilations=[2, 1]),
    "conv-3d": _conv((2, 2, 4, 5, 6), (3, 2, 2, 3, 3), pads=[0, 1, 1, 1, 1, 1], dilations=[1, 1, 2]),
    "conv-asymmetric": _conv((2, 3, 7, 8), (4, 3, 3, 3), pads=[0, 2, 1, 0]),
    "conv-same-upper": _conv((2, 3, 7, 8), (4, 3, 4, 3), auto_pad="SAME_UPPER", strides=[2, 3]),
    "conv-same-lower": _conv((2, 3, 7, 8), (4, 3, 4, 3), auto_pad="SAME_LOWER", strides=[2, 1]),
    "conv-valid": _conv((2, 3, 7, 8), (4, 3, 3, 3), auto_pad="VALID"),
    "conv-no-bias": Case("Conv", [_x(2, 3, 5, 5), [_x(4, 3, 3, 3)]], {"dilations": [2, 2]}),
    "deconv-1d": _deconv((2, 4, 5), (4, 3, 3), strides=[2], output_padding=[1], pads=[1, 0]),
    "deconv-2d": _deconv((2, 4, 5, 4), (4, 3, 3, 2), strides=[2, 3], pads=[1, 0, 0, 1], group=2),
    "deconv-3d": _deconv((1, 2, 3, 3, 3), (2, 2, 2, 2, 2), dilations=[1, 2, 1]),
    "deconv-output-shape": _deconv((2, 4, 5, 4), (4, 3, 3, 3), strides=[2, 2], output_shape=[10, 8]),
    "deconv-same-upper": _deconv((2, 4, 5, 4), (4, 3, 4, 3), strides=[2, 3], auto_pad="SAME_UPPER"),
    "deconv-same-lower": _deconv((2, 4, 5, 4), (4, 3, 4, 3), strides=[2, 2], auto_pad="SAME_LOWER"),
    "gemm": Case("Gemm", [_x(4, 3), [_x(5, 4)], [_x(5)]], {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    "matmul-vector": Case("MatMul", [_x(2, 3, 4), [_x(4)]]),
    "fused-matmul": Case("FusedMatMul", [_x(4, 3), [_x(5, 4)]], {"transA": 1, "transB": 1}, domain="com.microsoft"),
    "batch-norm-1d": Case("BatchNormalization", [_x(3, 4), *([_x(4) ** 2 + 0.5] for _ in range(4))], {"epsilon": 0.1}),
    "batch-norm-old": Case("BatchNormalization", [_x(3, 4, 2, 2), *([_x(4) ** 2 + 0.5] for _ in range(4))], {}, 8),
    "layer-norm-all": Case("LayerNormalization", [_x(2, 3, 4), [_x(3, 4)], [_x(3, 4)]], {"axis": 1}, 17, 3),
    "layer-norm-no-shift": Case("LayerNormalization", [_x(2, 3, 4), [_x(4)]], {"epsilon": 1e-2}),
    "group-norm-per-group": Case("GroupNormalization", [_x(2, 6, 3), [_x(3)], [_x(3)]], {"num_groups": 3}, 18),
    "group-norm-per-channel": Case("GroupNormalization", [_x(2, 6, 3), [_x(6)], [_x(6)]], {"num_groups": 3}, 21),
    "lp-norm-1": Case("LpNormalization", [_x(2, 3, 4)], {"axis": 1, "p": 1}),
    "mean-variance": Case("MeanVarianceNormalization", [_x(2, 3, 4, 4)]),
    "lrn": Case("LRN", [_x(2, 6, 3, 3)], {"size": 5, "alpha": 0.5, "bias": 2.0}),
    "clip-attributes": Case("Clip", [_x(3, 4)], {"min": -0.5, "max": 0.4}, 7),
    "clip-upper-only": Case("Clip", [_x(3, 4), None, _scalar(0.3)]),
    "clip-crossed": Case("Clip", [_x(3, 4), _scalar(0.5), _scalar(-0.5)]),
    "elu": Case("Elu", [_x(3, 4)], {"alpha": 0.3}),
    "celu": Case("Celu", [_x(3, 4)], {"alpha": 0.3}),
    "selu": Case("Selu", [_x(3, 4)], {"alpha": 1.5, "gamma": 0.7}),
    "leaky": Case("LeakyRelu", [_x(3, 4)], {"alpha": 0.3}),
    "hard-sigmoid": Case("HardSigmoid", [_x(3, 4)], {"alpha": 0.4, "beta": 0.3}),
    "thresholded": Case("ThresholdedRelu", [_x(3, 4)], {"alpha": 0.3}),
    "shrink": Case("Shrink", [_x(3, 4)], {"bias": 0.1, "lambd": 0.3}),
    "gelu-tanh": Case("Gelu", [_x(3, 4)], {"approximate": "tanh"}, 20),
    "gelu-microsoft": Case("Gelu", [_x(3, 4)], domain="com.microsoft"),
    "fast-gelu": Case("FastGelu", [_x(3, 4), [_x(4)]], domain="com.microsoft"),
    "quick-gelu": Case("QuickGelu", [_x(3, 4)], {"alpha": 1.2}, domain="com.microsoft"),
    "infinite": Case("IsInf", [np.array([np.inf, -np.inf, 0.0], np.float32)], {"detect_negative": 0}),
    "infinite-any": Case("IsInf", [np.array([np.inf, -np.inf, 0.0], np.float32)]),
    "div-integers": Case("Div", [np.array([-7, 7, 8]), np.array([2, -2, 3])]),
    "mod": Case("Mod", [np.array([-7, 7, 8]), np.array([3, -3, 3])]),
    "fmod": Case("Mod", [_x(3, 4), np.array([0.3], np.float32)], {"fmod": 1}),
    "pow-integer-exponent": Case("Pow", [_x(3, 4), _scalar(3, np.int64)]),
    "max-many": Case("Max", [_x(3, 4), _x(4), _x(3, 1)]),
    "mean-many": Case("Mean", [_x(3, 4), _x(4), _x(3, 1)]),
    "sum-one": Case("Sum", [_x(3, 4)]),
    "where": Case("Where", [_x(3, 1) > 0, _x(3, 4), _x(4)]),
    "softmax-old": Case("Softmax", [_x(2, 3, 4)], {"axis": 1}, 11),
    "softmax": Case("Softmax", [_x(2, 3, 4)], {"axis": 1}, 13),
    "hardmax-old": Case("Hardmax", [_x(2, 3, 4)], {"axis": 1}, 11),
    "max-pool-ceil": _pool("MaxPool", (2, 3, 8, 7), kernel_shape=[3, 3], strides=[2, 3], ceil_mode=1, pads=[0, 1] * 2),
    "max-pool-dilated": _pool("MaxPool", (2, 3, 9, 9), kernel_shape=[3, 2], dilations=[2, 3], pads=[1, 0, 2, 1]),
    "max-pool-1d": _pool("MaxPool", (2, 3, 8), kernel_shape=[3], strides=[2], auto_pad="SAME_UPPER"),
    "max-pool-3d": _pool("MaxPool", (2, 3, 4, 5, 6), kernel_shape=[2, 2, 2], strides=[2, 2, 2]),
    "max-pool-cut": _pool("MaxPool", (2, 3, 9, 8), kernel_shape=[2, 2], strides=[4, 3]),
    "average-pads": _pool("AveragePool", (2, 3, 7, 7), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 0, 1, 2]),
    "average-pads-count": _pool(
        "AveragePool", (2, 3, 7, 7), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 0, 1, 2], count_include_pad=1
    ),
    "average-ceil": _pool("AveragePool", (2, 3, 8, 8), 19, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    "average-ceil-count": _pool(
        "AveragePool", (2, 3, 8, 8), 19, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 0, 0], ceil_mode=1,
        count_include_pad=1,
    ),
    "average-dilated": _pool(
        "AveragePool", (2, 3, 9, 9), 19, kernel_shape=[3, 2], strides=[2, 1], dilations=[2, 3], pads=[1, 0, 2, 1]
    ),
    "average-1d": _pool("AveragePool", (2, 3, 8), kernel_shape=[3], auto_pad="SAME_LOWER", strides=[2]),
    "average-3d": _pool("AveragePool", (2, 3, 4, 5, 6), kernel_shape=[2, 2, 2]),
    "lp-pool": _pool("LpPool", (2, 3, 8, 8), kernel_shape=[3, 3], strides=[2, 2], p=3, pads=[1, 1, 1, 1]),
    "global-lp": _pool("GlobalLpPool", (2, 3, 8, 8), p=1),
    "global-max-1d": _pool("GlobalMaxPool", (2, 3, 8)),
    "reduce-all": Case("ReduceMax", [_x(2, 3, 4)]),
    "reduce-prod": Case("ReduceProd", [_x(2, 3, 4)], {"axes": [0, -1], "keepdims": 0}),
    "reduce-nothing": Case("ReduceSum", [_x(2, 3), _ints()], {"noop_with_empty_axes": 1}),
    "reduce-empty": Case("ReduceSum", [_x(2, 3), _ints()]),
    "argmin-last": Case("ArgMin", [np.array([[1, 0, 0], [2, 3, 2]], np.float32)], {"axis": 1, "select_last_index": 1}),
    "argmax-first": Case("ArgMax", [np.array([[1, 1, 0], [2, 3, 3]], np.float32)], {"axis": 1, "keepdims": 0}),
    "top-k": Case("TopK", [_x(3, 6), _ints(2)], {"axis": 0, "largest": 0}, outputs=2),
    "cumsum": Case("CumSum", [_x(3, 4), _scalar(1, np.int64)], {"exclusive": 1, "reverse": 1}),
    "identity": Case("Identity", [_x(3)]),
    "dropout-mask": Case("Dropout", [_x(3, 4)], {}, 13, 2),
    "reshape-zero": Case("Reshape", [_x(2, 3, 4), _ints(0, -1)]),
    "flatten-0": Case("Flatten", [_x(2, 3, 4)], {"axis": 0}),
    "flatten-negative": Case("Flatten", [_x(2, 3, 4)], {"axis": -1}),
    "squeeze-all": Case("Squeeze", [_x(1, 3, 1)]),
    "unsqueeze": Case("Unsqueeze", [_x(2, 3), _ints(-1, 0)]),
    "unsqueeze-old": Case("Unsqueeze", [_x(2, 3)], {"axes": [0, 3]}, 11),
    "transpose-default": Case("Transpose", [_x(2, 3, 4)]),
    "concat": Case("Concat", [_x(2, 3), [_x(2, 4)]], {"axis": -1}),
    "split-uneven": Case("Split", [_x(2, 7)], {"axis": 1, "num_outputs": 3}, 18, 3),
    "split-old": Case("Split", [_x(2, 7)], {"axis": 1, "split": [3, 4]}, 11, 2),
    "expand": Case("Expand", [_x(3, 1), _ints(2, 1, 4)]),
    "expand-shorter": Case("Expand", [_x(2, 3, 1), _ints(3, 4)]),
    "tile": Case("Tile", [_x(2, 3), _ints(2, 1)]),
    "depth-to-space": Case("DepthToSpace", [_x(2, 12, 2, 3)], {"blocksize": 2, "mode": "CRD"}),
    "space-to-depth": Case("SpaceToDepth", [_x(2, 3, 4, 6)], {"blocksize": 2}),
    "lower-triangle": Case("Trilu", [_x(2, 4, 4), _scalar(1, np.int64)], {"upper": 0}),
    "slice-attributes": Case("Slice", [_x(3, 5)], {"starts": [1, -3], "ends": [9, -1]}, 9),
    "slice-steps": Case("Slice", [_x(6, 7), _ints(1, -2), _ints(2**31, -100), _ints(0, 1), _ints(2, -2)]),
    "slice-backwards": Case("Slice", [_x(6), _ints(100), _ints(-100), _ints(0), _ints(-1)]),
    "slice-empty": Case("Slice", [_x(6), _ints(4), _ints(2)]),
    "gather-negative": Case("Gather", [_x(3, 4), [_IDS]], {"axis": 0}),
    "gather-scalar": Case("Gather", [_x(3, 4), _scalar(-1, np.int64)], {"axis": 1}),
    "gather-elements": Case("GatherElements", [_x(3, 2), [_IDS]], {"axis": 0}),
    "gather-places": Case("GatherND", [_x(3, 3, 2), [_IDS]]),
    "pad-attributes": Case("Pad", [_x(2, 3)], {"pads": [0, 1, 2, -1], "value": 0.5}, 10),
    "pad-value": Case("Pad", [_x(2, 3), _ints(0, 1, 2, 3), _scalar(0.5)]),
    "pad-reflect": Case("Pad", [_x(2, 5, 4), _ints(0, 3, 1, 0, 2, 3)], {"mode": "reflect"}),
    "pad-edge": Case("Pad", [_x(2, 5, 4), _ints(1, 3, 1, 0, 2, 0)], {"mode": "edge"}),
    "pad-wrap": Case("Pad", [_x(5, 4), _ints(2, 1, 3, 0)], {"mode": "wrap"}, 19),
    "pad-axes": Case("Pad", [_x(2, 3, 4), _ints(1, 2, 3, 0), None, _ints(-1, 0)], {}, 18),
    "constant": Case("Constant", [], {"value": _tensor(np.arange(6, dtype=np.float64).reshape(2, 3))}),
    "constant-float": Case("Constant", [], {"value_float": 0.0}),
    "constant-floats": Case("Constant", [], {"value_floats": [0.5, 2.0]}),
    "constant-int": Case("Constant", [], {"value_int": 3}),
    "constant-ints": Case("Constant", [], {"value_ints": [3, 4]}),
    "constant-of-shape": Case("ConstantOfShape", [np.array([2, 3])], {"value": _tensor(np.array([7], np.int64))}),
    "zeros-of-shape": Case("ConstantOfShape", [np.array([2, 3])]),
    "shape": Case("Shape", [_x(2, 3, 4)], {"start": -2, "end": 2}),
    "size": Case("Size", [_x(2, 3, 4)]),
    "range": Case("Range", [np.array(7), np.array(1), np.array(-2)]),
    "cast": Case("Cast", [_x(3, 4) * 9], {"to": TensorProto.INT32}),
    "cast-float16": Case("Cast", [np.arange(4)], {"to": TensorProto.FLOAT}),
    "cast-bool": Case("Cast", [np.array([0.0, -2.0], np.float32)], {"to": TensorProto.BOOL}),
    "cast-like": Case("CastLike", [np.arange(4), _x(1)]),
    "einsum-implicit": Case("Einsum", [_x(2, 3), _x(3, 4)], {"equation": "ij, jk"}),
    "einsum-ellipsis": Case("Einsum", [_x(2, 3, 4), _x(2, 4, 5)], {"equation": "...ij,...jk->...ik"}),
    "resize-nearest": _resize((1, 2, 3, 4), (1, 1, 2, 1.5)),
    "resize-nearest-ceil": _resize((1, 2, 5, 4), (1, 1, 0.6, 1.5), nearest_mode="ceil"),
    "resize-round-prefer-ceil": _resize((1, 2, 5, 4), (1, 1, 0.6, 1.5), nearest_mode="round_prefer_ceil"),
    "resize-floor-asymmetric": _resize(
        (1, 2, 5, 4), (1, 1, 2, 2), nearest_mode="floor", coordinate_transformation_mode="asymmetric"
    ),
    "resize-for-nn": Case(
        "Resize", [_x(1, 2, 5, 4), [_NOTHING], _floats(1, 1, 0.6, 2)],
        {"coordinate_transformation_mode": "tf_half_pixel_for_nn"}, 11,
    ),
    "resize-linear": _resize((1, 2, 3, 4), (1, 1, 2, 1.5), mode="linear"),
    "resize-linear-sizes": _resize((1, 2, 7, 5), sizes=(1, 2, 3, 9), mode="linear"),
    "resize-align-corners": _resize(
        (1, 2, 3, 4), (1, 1, 2, 1.5), mode="linear", coordinate_transformation_mode="align_corners"
    ),
    "resize-pytorch": _resize(
        (1, 2, 3, 4), sizes=(1, 2, 1, 6), mode="linear", coordinate_transformation_mode="pytorch_half_pixel"
    ),
    "resize-symmetric": _resize(
        (1, 2, 5, 4), (1, 1, 0.7, 1.4), mode="linear", coordinate_transformation_mode="half_pixel_symmetric", opset=19
    ),
    "resize-cubic": _resize((1, 2, 5, 4), (1, 1, 2, 1.5), mode="cubic", cubic_coeff_a=-0.5),
    "resize-cubic-inside": _resize((1, 2, 5, 4), (1, 1, 2, 1.5), mode="cubic", exclude_outside=1),
    "resize-axes": Case(
        "Resize", [_x(1, 2, 3, 4), None, None, _ints(6, 5)], {"axes": [2, 3], "mode": "linear"}, 18
    ),
    "resize-10": Case("Resize", [_x(1, 2, 3, 4), _floats(1, 1, 2, 2)], {"mode": "linear"}, 10),
    "upsample-9": Case("Upsample", [_x(1, 2, 3, 4), _floats(1, 1, 2, 3)], {"mode": "linear"}, 9),
    "upsample-7": Case("Upsample", [_x(1, 2, 3, 4)], {"mode": "nearest", "scales": [1.0, 1.0, 2.0, 3.0]}, 8),
    "rotary": _rotary(),
    "rotary-interleaved": _rotary(interleaved=1),
    "rotary-flat": _rotary(flat=True),
    "rotary-partial": _rotary(flat=True, pairs=2, rotary_embedding_dim=4),
    "rotary-23": Case("RotaryEmbedding", [_x(2, 3, 5, 8), _x(9, 4), _x(9, 4), _positions(2, 5)], {}, 23),
    "rotary-23-angles": Case("RotaryEmbedding", [_x(2, 3, 5, 8), _x(2, 5, 4), _x(2, 5, 4)], {"interleaved": 1}, 23),
    "rotary-23-flat": Case(
        "RotaryEmbedding", [_x(2, 5, 24), _x(9, 4), _x(9, 4), _positions(2, 5)], {"num_heads": 3}, 23
    ),
    "gqa": _gqa(),
    "gqa-past": _gqa(past=4),
    "gqa-apart": _gqa(packed=False, scale=0.3),
    "gqa-rotary": _gqa(past=3, do_rotary=1),
    "gqa-interleaved": _gqa(do_rotary=1, rotary_interleaved=1),
    "gqa-softcap": _gqa(softcap=2.0),
    "multi-head": _microsoft("MultiHeadAttention", [_x(2, 5, 12), _x(2, 7, 12), _x(2, 7, 12)], num_heads=3),
    "multi-head-bias": _microsoft(
        "MultiHeadAttention", [_x(2, 5, 12), _x(2, 5, 12), _x(2, 5, 12), [_x(36)], None, _x(2, 3, 5, 5)],
        num_heads=3, unidirectional=1,
    ),
    "multi-head-past": _microsoft(
        "MultiHeadAttention",
        [_x(2, 5, 12), _x(2, 5, 12), _x(2, 5, 12), None, None, None, _x(2, 3, 4, 4), _x(2, 3, 4, 4)],
        outputs=3, num_heads=3, scale=0.4,
    ),
    "packed": _microsoft("Attention", [_x(2, 5, 6), [_x(6, 36)], [_x(36)]], num_heads=3),
    "packed-mask": _microsoft(
        "Attention", [_x(2, 5, 6), [_x(6, 36)], [_x(36)], np.array([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]], np.int32)],
        num_heads=3,
    ),
    "packed-causal": _microsoft(
        "Attention", [_x(2, 5, 6), [_x(6, 36)], [_x(36)], None, _x(2, 2, 3, 4, 4)], outputs=2, num_heads=3,
        unidirectional=1,
    ),
    "attention-23": Case("Attention", [_x(2, 3, 5, 4), _x(2, 3, 7, 4), _x(2, 3, 7, 6)], {}, 23),
    "attention-23-grouped": Case(
        "Attention", [_x(2, 5, 24), _x(2, 5, 8), _x(2, 5, 8)],
        {"q_num_heads": 6, "kv_num_heads": 2, "is_causal": 1, "scale": 0.3}, 23,
    ),
    "attention-23-mask": Case(
        "Attention", [_x(2, 3, 5, 4), _x(2, 3, 7, 4), _x(2, 3, 7, 6), _RANDOM.random((5, 7)) < 0.7], {}, 23
    ),
    "attention-23-past": Case(
        "Attention", [_x(1, 2, 3, 4), _x(1, 2, 3, 4), _x(1, 2, 3, 4), None, _x(1, 2, 5, 4), _x(1, 2, 5, 4)],
        {}, 23, outputs=3,
    ),
}  # fmt: skip
