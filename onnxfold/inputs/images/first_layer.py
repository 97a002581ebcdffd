"""Pixels that no node scales, told from the first layer.

Training leaves the channels of a first layer with deviations near one, and with means that are not far from zero.
Where images have a mean, biases take it away, in proportion to the sums of the filters. And filters that see pixels up
to 255 are small against their biases: by a factor of 67 to 165, and of .04 to 7 in eighty networks of other images.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from onnx import NodeProto

from onnxfold.channels.layers import batch_norm, layer_of
from onnxfold.graph.patterns import only_reader
from onnxfold.graph.view import GraphView

Numbers = npt.NDArray[np.float64]

#: Quantile over the filters of the size of their biases over their own, and the one that tells pixels up to 255.
_QUANTILE, _LARGE = 0.75, 16.0
#: Correlation of what is taken away with the sums of filters that tells a mean, of pixels up to 255 and up to 1.
_GOES, _GOES_WELL = 0.4, 0.6
#: Fewest filters that tell a mean: few go with anything.
_FEWEST = 8
#: Means that pixels up to 1 have, and the usual one: estimates are too small where filters are noisy.
_MEANS, _USUAL = (0.25, 1.0), 0.45
#: Filters whose size is so small a part of the largest are none.
_DEAD = 1e-3
BYTE = 255.0


class Pixels(NamedTuple):
    """Numbers that images consist of."""

    largest: float
    mean: float  # 0 where it was taken away before


class _Seen(NamedTuple):
    """A first layer: its biases over the size of its filters, and the mean of the images that would explain them."""

    ratio: float
    mean: float
    correlation: float  # of what is taken away from the channels with the sums of their filters


def pixels_of(view: GraphView, image: str) -> Pixels | None:
    """Return the pixels that convolutions of images are made for; None where these are standardised, or not known."""
    seen = [_seen(view, node) for node in view.consumers(image) if node.op_type == "Conv"]
    known = [layer for layer in seen if layer is not None]
    if not known:
        return None
    layer = max(known, key=lambda layer: layer.correlation)
    if min(layer.ratio for layer in known) > _LARGE:
        return Pixels(BYTE, max(layer.mean, _USUAL * BYTE) if layer.correlation > _GOES else 0.0)
    if layer.correlation > _GOES_WELL and _MEANS[0] <= layer.mean <= _MEANS[1]:
        return Pixels(1.0, max(layer.mean, _USUAL))
    return None


def _seen(view: GraphView, node: NodeProto) -> _Seen | None:
    layer = layer_of(view, node)
    if layer is None or not view.is_weight(node.input[1]):
        return None
    filters = _numbers(view, node.input[1])
    filters = filters.reshape(len(filters), -1)
    bias = _numbers(view, layer.bias).ravel() if layer.bias else np.zeros(len(filters))
    reader = only_reader(view, layer.output)
    norm = None if reader is None else batch_norm(view, reader)
    if norm is None and not layer.bias:
        return None
    if norm is not None and all(map(view.is_weight, (norm.scale, norm.shift, norm.mean, norm.variance))):
        # As it is where the normalisation is fused: both forms must be told alike.
        scale = _numbers(view, norm.scale) / np.sqrt(_numbers(view, norm.variance) + norm.epsilon)
        bias = _numbers(view, norm.shift) + scale * (bias - _numbers(view, norm.mean))
        filters = filters * scale[:, None]
    size = np.linalg.norm(filters, axis=1)
    live = size > _DEAD * size.max()
    if not live.any():
        return None
    removed = -bias[live]
    ratios = np.abs(removed) / size[live]
    return _Seen(float(np.quantile(ratios, _QUANTILE)), *_mean(removed, filters.sum(axis=1)[live]))


def _numbers(view: GraphView, name: str) -> Numbers:
    return np.asarray(view.weight(name), np.float64)


def _mean(removed: Numbers, sums: Numbers) -> tuple[float, float]:
    """Return the mean of images that explains best what is taken away, and how well it does; 0 of too few filters."""
    if len(sums) < _FEWEST or not (removed.std() and sums.std()):
        return 0.0, 0.0
    return float(sums @ removed / (sums @ sums)), float(np.corrcoef(removed, sums)[0, 1])
