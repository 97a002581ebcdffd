"""Pixels that no node scales, told from the first layer.

Training leaves the channels of a first layer with deviations near one, and with means that are not far from zero.
Where images have a mean, biases and running means take it away, in proportion to the sums of the filters. And filters
that see pixels up to 255 are small against what is behind them: by a factor of 39 to 101, and of .04 to 7 in eighty
networks of other images.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from onnx import NodeProto

from onnxfold.channels.layers import batch_norm, layer_of
from onnxfold.graph.patterns import only_reader
from onnxfold.graph.view import GraphView

Numbers = npt.NDArray[np.float64]

#: Ratio that tells pixels up to 255.
_LARGE = 16.0
#: Correlation of what is taken away with the sums of filters that tells a mean.
_CORRELATED = 0.6
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
    """A first layer: statistics or biases against the size of filters, and the mean of the images where it is told."""

    ratio: float
    mean: float


def told_pixels(view: GraphView, image: str) -> Pixels | None:
    """Return the pixels that convolutions of images are made for; None where these are standardised, or not known."""
    seen = [_seen(view, node) for node in view.consumers(image) if node.op_type == "Conv"]
    known = [layer for layer in seen if layer is not None]
    if not known:
        return None
    mean = max(layer.mean for layer in known)
    if min(layer.ratio for layer in known) > _LARGE:
        return Pixels(BYTE, max(mean, _USUAL * BYTE) if mean > 0.0 else 0.0)
    if _MEANS[0] <= mean <= _MEANS[1]:
        return Pixels(1.0, max(mean, _USUAL))
    return None


def _seen(view: GraphView, node: NodeProto) -> _Seen | None:
    layer = layer_of(view, node)
    if layer is None or not view.is_weight(node.input[1]):
        return None
    filters = np.asarray(view.weight(node.input[1]), np.float64)
    filters = filters.reshape(len(filters), -1)
    size, sums = np.linalg.norm(filters, axis=1), filters.sum(axis=1)
    live = size > _DEAD * size.max()
    if not live.any():
        return None
    reader = only_reader(view, layer.output)
    norm = None if reader is None else batch_norm(view, reader)
    if norm is not None and all(map(view.is_weight, (norm.mean, norm.variance))):
        variance, taken = (np.asarray(view.weight(name), np.float64) for name in (norm.variance, norm.mean))
        ratios, quantile = np.sqrt(variance)[live] / size[live], 0.5
    elif layer.bias:
        taken = -np.asarray(view.weight(layer.bias), np.float64).ravel()
        ratios, quantile = np.abs(taken[live]) / size[live], 0.75
    else:
        return None
    return _Seen(float(np.quantile(ratios, quantile)), _mean(taken[live], sums[live]))


def _mean(taken: Numbers, sums: Numbers) -> float:
    """Return the mean of images, 0 where what is taken away from channels does not go with the sums of filters."""
    if len(sums) < 2 or not (taken.std() and sums.std()) or np.corrcoef(taken, sums)[0, 1] < _CORRELATED:
        return 0.0
    return float(sums @ taken / (sums @ sums))
