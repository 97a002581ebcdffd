"""Interpolation along axes: each axis is a product with a matrix of weights."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from onnxfold.torch_graph.registry import Operation, TorchNode, operator

#: Where position i of the result lies in the input, of `size` and `length` positions, at a scale.
_PLACES: dict[str, Callable[[Tensor, float, int, int], Tensor]] = {
    "half_pixel": lambda i, scale, size, length: (i + 0.5) / scale - 0.5,
    "pytorch_half_pixel": lambda i, scale, size, length: (i + 0.5) / scale - 0.5 if length > 1 else i * 0.0,
    "half_pixel_symmetric": lambda i, scale, size, length: (
        size / 2 * (1 - length / (scale * size)) + (i + 0.5) / scale - 0.5
    ),
    "align_corners": lambda i, scale, size, length: i * (size - 1) / max(length - 1, 1),
    "asymmetric": lambda i, scale, size, length: i / scale,
    "tf_half_pixel_for_nn": lambda i, scale, size, length: (i + 0.5) / scale,
}
_ROUND: dict[str, Callable[[Tensor], Tensor]] = {
    "round_prefer_floor": lambda x: torch.ceil(x - 0.5), "round_prefer_ceil": lambda x: torch.floor(x + 0.5),
    "floor": torch.floor, "ceil": torch.ceil,
}  # fmt: skip


class _Interpolation:
    """The attributes of Resize and Upsample."""

    def __init__(self, node: TorchNode) -> None:
        old = node.op_type == "Upsample" or node.version < 11
        self.mode = node.text("mode", "nearest")
        self.places = node.text("coordinate_transformation_mode", "asymmetric" if old else "half_pixel")
        self.rounding = node.text("nearest_mode", "floor" if old else "round_prefer_floor")
        self.sharpness = node.number("cubic_coeff_a", -0.75)
        self.exclude_outside = bool(node.integer("exclude_outside", 0))
        if self.places not in _PLACES or self.mode not in ("nearest", "linear", "bilinear", "cubic"):
            raise node.unsupported(f"the mode '{self.mode}' with '{self.places}'")
        if node.integer("antialias", 0) or node.text("keep_aspect_ratio_policy", "stretch") != "stretch":
            raise node.unsupported("it smooths before it shrinks, or keeps the aspect ratio")

    def resize_axis(self, x: Tensor, axis: int, scale: float, length: int) -> Tensor:
        """Return a tensor with one axis resized to `length`."""
        if length == x.shape[axis] and scale == 1.0:
            return x
        matrix = self._matrix(x.shape[axis], scale, length).to(x)
        return (x.movedim(axis, -1) @ matrix.t()).movedim(-1, axis)

    def _matrix(self, size: int, scale: float, length: int) -> Tensor:
        """Return the weights, of shape (length, size)."""
        place = _PLACES[self.places](torch.arange(length, dtype=torch.float64), scale, size, length)
        if self.mode == "nearest":
            return _scatter([_ROUND[self.rounding](place)], [torch.ones_like(place)], size)
        low = torch.floor(place)
        part = place - low
        if self.mode != "cubic":
            return _scatter([low, low + 1], [1 - part, part], size)
        taps = [low + i for i in range(-1, 3)]
        weights = [_cubic((place - tap).abs(), self.sharpness) for tap in taps]
        if self.exclude_outside:
            weights = [torch.where((t < 0) | (t >= size), 0.0, w) for t, w in zip(taps, weights, strict=True)]
            total = torch.stack(weights).sum(0)
            weights = [w / total for w in weights]
        return _scatter(taps, weights, size)


@operator("Upsample", "Resize")
def resize(node: TorchNode) -> Operation:
    """Scales are an attribute or an input, or sizes are an input."""
    interpolation, some = _Interpolation(node), node.integers("axes")
    fixed: Any = node.value("scales", [])
    if node.version < 9 and not fixed:
        raise node.unsupported("it has no attribute 'scales'")
    behind_region = 1 if node.version > 10 else 0

    def run(x: Tensor, *inputs: Tensor | None) -> Tensor:
        scales, sizes = (*inputs[behind_region:], None, None)[:2]
        axes = [a % x.ndim for a in some] or range(x.ndim)
        before = [x.shape[axis] for axis in axes]
        if sizes is not None and sizes.numel():
            after = sizes.tolist()
            factors = [length / size for length, size in zip(after, before, strict=True)]
        else:
            factors = fixed if scales is None else scales.tolist()
            after = [math.floor(size * factor) for factor, size in zip(factors, before, strict=True)]
        for axis, factor, length in zip(axes, factors, after, strict=True):
            x = interpolation.resize_axis(x, axis, factor, length)
        return x

    return run


def _scatter(taps: list[Tensor], weights: list[Tensor], size: int) -> Tensor:
    """Return a matrix with the weights at their taps; those outside count for the border."""
    matrix = torch.zeros(len(taps[0]), size, dtype=torch.float64)
    for tap, weight in zip(taps, weights, strict=True):
        matrix.scatter_add_(1, tap.clamp(0, size - 1).long()[:, None], weight[:, None])
    return matrix


def _cubic(distance: Tensor, a: float) -> Tensor:
    """Return Keys' kernel."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return torch.where(distance <= 1, near, torch.where(distance < 2, far, torch.zeros_like(distance)))
