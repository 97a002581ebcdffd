r"""Move the scale of BatchNormalization into the rows of the layer before it.

Row i and its bias are multiplied by gamma_i / sigma_i. The BatchNormalization keeps its true statistics, those of the
new rows, and its scale undoes its division:

    w'_i = w_i gamma_i / sigma_i,  mean'_i = mu_i gamma_i / sigma_i,  var'_i = gamma_i^2 - eps,  scale'_i = |gamma_i|

The network computes the same. Averaging w' averages what goes into the nonlinearity, whatever the scales of the merged
channels; averaging normalised rows and gammas apart (as Fold-AR does) averages products by products of averages.
"""

from dataclasses import dataclass

import numpy as np

from onnxfold.channels.group import FoldGroup
from onnxfold.channels.layers import GroupLayer, Normalization
from onnxfold.channels.rows import per_unit, scale_units, set_per_unit
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult
from onnxfold.passes.merge.normalize_batch_norm import rescale


@dataclass(frozen=True)
class ScaleToOutput(Pass):
    """Scale the rows of every layer in some groups whose output only its BatchNormalization reads."""

    groups: tuple[FoldGroup, ...]

    def run(self, view: GraphView) -> PassResult:
        """Rescale weights; the graph stays."""
        return PassResult(rescale(view, self.groups, _scale))


def _scale(view: GraphView, norm: Normalization, layer: GroupLayer) -> bool:
    eps = norm.epsilon
    gamma = per_unit(view, norm.scale).astype(np.float64)
    sigma = np.sqrt(np.maximum(per_unit(view, norm.variance).astype(np.float64), 0.0) + eps)
    factor = gamma / sigma
    if np.allclose(factor, 1.0, rtol=1e-5, atol=0.0):
        return False
    variance = np.maximum(gamma**2 - eps, 0.0)
    set_per_unit(view, norm.mean, per_unit(view, norm.mean) * factor)
    set_per_unit(view, norm.variance, variance)
    set_per_unit(view, norm.scale, np.sqrt(variance + eps))
    scale_units(view, layer.rows, factor)
    if layer.bias is not None:
        set_per_unit(view, layer.bias, per_unit(view, layer.bias) * factor)
    return True
