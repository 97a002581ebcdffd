r"""Move the division of BatchNormalization into the rows of the layer before it.

Row i and its bias are divided by sigma_i = sqrt(var_i + eps):

    w~_i = w_i / sigma_i,   b~_i = (b_i - mu_i) / sigma_i,   mean = 0, variance = 1 - eps

A layer without a bias keeps none; the BatchNormalization then stores mean = mu_i / sigma_i. The network computes the
same. Merging w~ and b~ by plain means is the published form of folding (Fold-AR); merging w_i and
sigma_i separately (Fold-naive) averages filters whose outputs have different scales.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from onnxfold.channels.group import FoldGroup
from onnxfold.channels.layers import GroupLayer, Normalization, normalizations
from onnxfold.channels.rows import per_unit, scale_units, set_per_unit
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult


@dataclass(frozen=True)
class NormalizeBatchNorm(Pass):
    """Normalise the rows of every layer in some groups whose output only its BatchNormalization reads."""

    groups: tuple[FoldGroup, ...]

    def run(self, view: GraphView) -> PassResult:
        """Rescale weights; the graph stays."""
        return PassResult(rescale(view, self.groups, _normalize))


def rescale(
    view: GraphView, groups: Sequence[FoldGroup], rewrite: Callable[[GraphView, Normalization, GroupLayer], bool]
) -> bool:
    """Rewrite every layer of some groups that only its BatchNormalization reads; return whether any changed."""
    norms = [norm for group in groups for norm in normalizations(view, group)]
    changed = [rewrite(view, norm, norm.layer) for norm in norms if norm.layer is not None]
    return any(changed)


def _normalize(view: GraphView, norm: Normalization, layer: GroupLayer) -> bool:
    eps = norm.epsilon
    mean, variance = per_unit(view, norm.mean), per_unit(view, norm.variance)
    if np.all(variance == variance.dtype.type(1.0 - eps)) and (layer.bias is None or not mean.any()):
        return False
    sigma = np.sqrt(np.maximum(variance.astype(np.float64), 0.0) + eps)
    set_per_unit(view, norm.variance, np.full_like(sigma, 1.0 - eps))
    scale_units(view, layer.rows, 1.0 / sigma)
    if layer.bias is None:
        set_per_unit(view, norm.mean, mean / sigma)
    else:
        set_per_unit(view, layer.bias, (per_unit(view, layer.bias) - mean) / sigma)
        set_per_unit(view, norm.mean, np.zeros_like(sigma))
    return True


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
