"""Pixels up to 255 that no node scales, told from the first layer.

Training leaves the channels of a first layer with deviations near one, and their means not far from zero. Filters that
see pixels are small against the biases or statistics behind them, then. The ratio is .04 to 7 in eighty networks of
standardised images and of pixels up to 1, and 39 to 101 in those that take pixels up to 255.
"""

import numpy as np
import numpy.typing as npt
from onnx import NodeProto

from onnxfold.channels.layers import batch_norm, layer_of
from onnxfold.graph.patterns import only_reader
from onnxfold.graph.view import GraphView

#: Ratio that tells pixels up to 255.
_LARGE = 16.0
#: Correlation of what biases take away with the sums of filters, which says that the mean of the images is not zero.
_OF_MEAN = 0.4
#: Filters whose size is so small a part of the largest are none.
_DEAD = 1e-3


def takes_bytes(view: GraphView, image: str) -> tuple[bool, bool]:
    """Return whether the convolutions of images see numbers as large as pixels, and whether these have a mean."""
    readers = [node for node in view.consumers(image) if node.op_type == "Conv"]
    seen = [_ratio(view, node) for node in readers]
    known = [(ratio, has_mean) for ratio, has_mean in seen if ratio > 0.0]
    return bool(known) and min(ratio for ratio, _ in known) > _LARGE, any(has_mean for _, has_mean in known)


def _ratio(view: GraphView, node: NodeProto) -> tuple[float, bool]:
    """Return how large statistics or biases are against filters, 0 if not known, and whether they hold a mean."""
    layer = layer_of(view, node)
    if layer is None or not view.is_weight(node.input[1]):
        return 0.0, False
    filters = np.asarray(view.weight(node.input[1]), np.float64)
    filters = filters.reshape(len(filters), -1)
    size, sums = np.linalg.norm(filters, axis=1), filters.sum(axis=1)
    live = size > _DEAD * size.max()
    reader = only_reader(view, layer.output)
    norm = None if reader is None else batch_norm(view, reader)
    if norm is not None and all(map(view.is_weight, (norm.mean, norm.variance))):
        deviation = np.sqrt(np.asarray(view.weight(norm.variance), np.float64))
        mean = np.asarray(view.weight(norm.mean), np.float64)
        return _typical(deviation[live] / size[live], 0.5), _goes_with(mean[live], sums[live])
    if not layer.bias:
        return 0.0, False
    bias = np.asarray(view.weight(layer.bias), np.float64).ravel()
    return _typical(np.abs(bias[live]) / size[live], 0.75), _goes_with(-bias[live], sums[live])


def _typical(ratios: npt.NDArray[np.float64], quantile: float) -> float:
    return float(np.quantile(ratios, quantile)) if ratios.size else 0.0


def _goes_with(values: npt.NDArray[np.float64], sums: npt.NDArray[np.float64]) -> bool:
    if len(sums) < 2 or not (values.std() and sums.std()):
        return False
    return float(np.corrcoef(values, sums)[0, 1]) > _OF_MEAN
