"""Resize and Upsample: RESIZE_NEAREST_NEIGHBOR and RESIZE_BILINEAR, or one operator per axis.

Every mode but nearest is, along each axis, a constant linear map of the positions: a matrix with one row per output
position. `_interpolation` writes that matrix down as ONNX defines it; where the two TFLite operators have another one,
a BATCH_MATMUL per axis applies it. Nearest is a GATHER per axis.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from onnxfold.export.tflite.context import Op, converter
from onnxfold.export.tflite.graph import Value
from onnxfold.export.tflite.layout import ChannelsLast, Dynamic, channels_last
from onnxfold.export.tflite.ops.reshaping import take
from onnxfold.graph.tensors import Array


@dataclass(frozen=True)
class _Axis:
    """One axis to resize: sizes, scale, and the part of it that crop_and_resize looks at."""

    length: int
    output: int
    scale: float
    start: float = 0.0
    end: float = 1.0


@converter("Resize", since=10, layouts=ChannelsLast())
def resize(op: Op) -> Value:
    """Constant scales or sizes; every mode, coordinate transformation and rounding of ONNX."""
    axes, layout = _axes(op), op.layout
    mode = op.text("mode", "nearest")
    default = "half_pixel" if op.version >= 11 and op.op_type == "Resize" else "asymmetric"
    how = op.text("coordinate_transformation_mode", default)
    x = op.read(0)
    changed = [a for a, axis in enumerate(axes) if axis.length != axis.output or (axis.start, axis.end) != (0.0, 1.0)]
    if not changed:
        return x
    op.require_fixed((op.shape()[a] for a in changed), "resizes")
    y = _image_operator(op, x, axes, mode, how, changed)
    if y is None:
        y = x
        for a in changed:
            if mode == "nearest":
                y = take(op, y, _nearest(op, axes[a], how).tolist(), layout.axis(a))
            else:
                y = _apply(op, y, _interpolation(op, axes[a], mode, how), layout.axis(a))
    if how == "tf_crop_and_resize" and mode != "nearest":
        y = _extrapolate(op, y, axes)
    return y


@converter("Upsample", layouts=ChannelsLast())
def upsample(op: Op) -> Value | None:
    """Resize of older operator sets: asymmetric coordinates."""
    return resize(op)


def _axes(op: Op) -> list[_Axis]:
    shape, result = op.shape(), op.result()
    rank = len(shape)
    scales_index = 1 if op.version < 11 else 2
    is_input = op.has_input(scales_index)
    scales = op.required_weight(scales_index, "scales") if is_input else np.array(op.value("scales", []))
    axes = [a % rank for a in op.integers("axes", list(range(rank)))]
    factors = {a: float(s) for a, s in zip(axes, scales, strict=True)} if scales.size else {}
    if op.has_input(3) and op.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        sizes = op.required_weight(3, "sizes")
        choose = max if op.text("keep_aspect_ratio_policy", "") == "not_smaller" else min
        common = choose(int(s) / int(shape[a]) for a, s in zip(axes, sizes, strict=True))
        factors = dict.fromkeys(axes, common)
    roi = dict.fromkeys(range(rank), (0.0, 1.0))
    if op.text("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        values = op.required_weight(1, "region of interest").astype(np.float64)
        roi.update({a: (values[i], values[len(axes) + i]) for i, a in enumerate(axes)})
    return [
        _Axis(int(n), int(o), 1.0) if isinstance(n, Dynamic) else _Axis(n, int(o), factors.get(i, int(o) / n), *roi[i])
        for i, (n, o) in enumerate(zip(shape, result, strict=True))
    ]


def _image_operator(op: Op, x: Value, axes: list[_Axis], mode: str, how: str, changed: list[int]) -> Value | None:
    """Return the result of TFLite's own operator on (N, H, W, C), None where it computes something else."""
    if len(axes) != 4 or not set(changed) <= {2, 3} or mode not in ("nearest", "linear"):
        return None
    code = "RESIZE_NEAREST_NEIGHBOR" if mode == "nearest" else "RESIZE_BILINEAR"
    size = (axes[2].output, axes[3].output)
    wanted = [_nearest(op, a, how) if mode == "nearest" else _interpolation(op, a, mode, how) for a in axes[2:]]
    own, rtol = (_tflite_nearest, 0.0) if mode == "nearest" else (_tflite_linear, 1e-5)
    for corners, half in ((False, False), (True, False), (False, True)):
        maps = [own(a, corners, half) for a in axes[2:]]
        if all(np.allclose(want, got, rtol, 1e-6) for want, got in zip(wanted, maps, strict=True)):
            shape = (x.shape[0], *size, x.shape[3])
            return op.graph.op(
                code, [x, op.graph.indices(size)], shape, alignCorners=corners, halfPixelCenters=half,
                version=3 if half else 1,
            )  # fmt: skip
    return None


def _tflite_scale(axis: _Axis, corners: bool) -> np.float32:
    if corners and axis.output > 1:
        return np.float32(axis.length - 1) / np.float32(axis.output - 1)
    return np.float32(axis.length) / np.float32(axis.output)


def _tflite_nearest(axis: _Axis, corners: bool, half: bool) -> Array:
    """Return the positions that RESIZE_NEAREST_NEIGHBOR reads."""
    offset = np.float32(0.5 if half else 0.0)
    at = (np.arange(axis.output, dtype=np.float32) + offset) * _tflite_scale(axis, corners)
    # The kernel rounds halves away from zero.
    positions = np.floor(at + np.float32(0.5)) if corners else np.floor(at)
    clipped: Array = np.clip(positions, 0, axis.length - 1).astype(np.int64)
    return clipped


def _tflite_linear(axis: _Axis, corners: bool, half: bool) -> Array:
    """Return the matrix that RESIZE_BILINEAR applies."""
    offset = np.float32(0.5 if half else 0.0)
    at = (np.arange(axis.output, dtype=np.float32) + offset) * _tflite_scale(axis, corners) - offset
    low = np.maximum(np.floor(at), 0).astype(np.int64)
    high = np.minimum(np.ceil(at) if half else np.floor(at) + 1, axis.length - 1).astype(np.int64)
    fraction = at - low
    matrix = np.zeros((axis.output, axis.length))
    rows = np.arange(axis.output)
    np.add.at(matrix, (rows, np.minimum(low, axis.length - 1)), 1 - fraction)
    np.add.at(matrix, (rows, high), fraction)
    return matrix


def _coordinates(axis: _Axis, how: str) -> Array:
    """Return where in the input each output position lies, as ONNX defines it."""
    x = np.arange(axis.output, dtype=np.float64)
    width = axis.scale * axis.length
    if how == "asymmetric":
        return x / axis.scale
    if how == "align_corners":
        return x * (axis.length - 1) / (width - 1) if width != 1 else np.zeros_like(x)
    if how == "tf_crop_and_resize":
        if axis.output == 1:
            return np.array([0.5 * (axis.start + axis.end) * (axis.length - 1)])
        step = (axis.end - axis.start) * (axis.length - 1) / (width - 1)
        return x * step + axis.start * (axis.length - 1)
    if how == "pytorch_half_pixel" and width <= 1:
        return np.full_like(x, -0.5)
    if how == "tf_half_pixel_for_nn":
        return (x + 0.5) / axis.scale
    at = (x + 0.5) / axis.scale - 0.5
    if how == "half_pixel_symmetric":
        adjustment = axis.output / width
        return axis.length / 2 * (1 - adjustment) + at
    return at


def _nearest(op: Op, axis: _Axis, how: str) -> Array:
    """Return the input position of every output position."""
    at = _coordinates(axis, how)
    rounding = op.text("nearest_mode", "round_prefer_floor" if op.version >= 11 and op.op_type == "Resize" else "floor")
    roundings: dict[str, Callable[[Array], Array]] = {
        "floor": np.floor, "round_prefer_ceil": lambda v: np.floor(v + 0.5),
        "ceil": np.ceil, "round_prefer_floor": lambda v: np.ceil(v - 0.5),
    }  # fmt: skip
    return np.clip(roundings[rounding](at), 0, axis.length - 1).astype(np.int64)


def _interpolation(op: Op, axis: _Axis, mode: str, how: str) -> Array:
    """Return the matrix (output, input) of linear or cubic interpolation along one axis."""
    at = _coordinates(axis, how)
    shrink = min(axis.scale, 1.0) if op.integer("antialias", 0) else 1.0
    sharpness = op.number("cubic_coeff_a", -0.75)
    reach = (1 if mode == "linear" else 2) / shrink
    matrix = np.zeros((axis.output, axis.length))
    for row, centre in enumerate(at):
        taps = np.arange(int(np.floor(centre - reach)), int(np.ceil(centre + reach)) + 1)
        distance = np.abs(taps - centre) * shrink
        weights = np.maximum(1 - distance, 0) if mode == "linear" else _cubic(distance, sharpness)
        outside = (taps < 0) | (taps >= axis.length)
        if op.integer("exclude_outside", 0):
            weights = np.where(outside, 0.0, weights)
        if weights.sum() != 0:
            weights = weights / weights.sum()
        np.add.at(matrix[row], np.clip(taps, 0, axis.length - 1), weights)
    return matrix


def _cubic(distance: Array, a: float) -> Array:
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((distance - 5) * distance + 8) * distance * a - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


def _apply(op: Op, x: Value, matrix: Array, axis: int) -> Value:
    """Multiply one axis of a TFLite tensor by a matrix (output, input)."""
    shape = tuple(matrix.shape[0] if i == axis else d for i, d in enumerate(x.shape))
    before, after = x.shape[:axis], int(np.prod([int(d) for d in x.shape[axis + 1 :]]))
    flat = op.graph.reshape(x, (*before, x.shape[axis], after))
    left = op.graph.constant(matrix.astype(np.float32).reshape(*[1] * len(before), *matrix.shape), "interpolation")
    return op.graph.reshape(op.graph.op("BATCH_MATMUL", [left, flat], (*before, matrix.shape[0], after)), shape)


def _extrapolate(op: Op, y: Value, axes: list[_Axis]) -> Value:
    """Replace what lies outside of the input by the extrapolation value."""
    value = op.number("extrapolation_value", 0.0)
    inside = np.ones(())
    for axis in axes:
        at = _coordinates(axis, "tf_crop_and_resize") if axis.length != 1 or axis.output != 1 else np.zeros(1)
        inside = inside[..., None] * ((at >= 0) & (at <= axis.length - 1))
    if np.all(inside):
        return y
    mask = channels_last(len(axes)).values(inside[:1])
    calc = op.graph
    kept = calc.mul(y, op.graph.constant(mask.astype(np.float32)))
    return calc.add(kept, op.graph.constant((value * (1 - mask)).astype(np.float32))) if value else kept
