r"""Move the division of BatchNormalization into the rows of the layer before it.

Row i and its bias are divided by sigma_i = sqrt(var_i + eps):

    w~_i = w_i / sigma_i,   b~_i = (b_i - mu_i) / sigma_i,   mean = 0, variance = 1 - eps

A layer without a bias keeps none; the BatchNormalization then stores mean = mu_i / sigma_i. The network computes the
same. Merging w~ and b~ by plain means is the published form of folding (Fold-AR); merging w_i and
sigma_i separately (Fold-naive) averages filters whose outputs have different scales.

Or row i and its bias are multiplied by gamma_i / sigma_i. The BatchNormalization keeps its true statistics, those of
the new rows, and its scale undoes its division:

    w'_i = w_i gamma_i / sigma_i,  mean'_i = mu_i gamma_i / sigma_i,  var'_i = gamma_i^2 - eps,  scale'_i = |gamma_i|

Averaging w' averages what goes into the nonlinearity, whatever the scales of the merged channels; averaging normalised
rows and gammas apart (as Fold-AR does) averages products by products of averages.

Scales of norms over a residual stream go into the weights that read them. A reader W of the norm x^ g + b, x^ what is
divided by its length, becomes W diag(g), and g becomes ones. The shift b, of a norm that also subtracts the mean, goes
where that subtraction leaves room: x^ adds up to zero, so its coordinate along the vector of ones is free. The shift
becomes ones, and the n columns of W read it,

    W' = W diag(g) (I - 1 1^T / n) + (W b) 1^T / n,   W' (x^ + 1) = W (x^ g + b).

The network computes the same, without a node or a bias more, and the stream may be rotated.
"""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from onnxfold.channels.group import FoldGroup, ScaledNorm, per_unit, put_rows_of, rows_of, scale_units, set_per_unit
from onnxfold.channels.layers import GroupLayer, Normalization, normalizations
from onnxfold.graph.tensors import Matrix
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult


@dataclass(frozen=True)
class _Rescaling(Pass):
    """Rewrites every layer of some groups whose output only its BatchNormalization reads; the graph stays."""

    groups: tuple[FoldGroup, ...]

    @abstractmethod
    def rewrite(self, view: GraphView, norm: Normalization, layer: GroupLayer) -> bool:
        """Rewrite one of them; return whether anything changed."""

    def run(self, view: GraphView) -> PassResult:
        """Rescale weights."""
        norms = [norm for group in self.groups for norm in normalizations(view, group)]
        changed = [self.rewrite(view, norm, norm.layer) for norm in norms if norm.layer is not None]
        return PassResult(any(changed))


class NormalizeBatchNorm(_Rescaling):
    """Normalise the rows."""

    def rewrite(self, view: GraphView, norm: Normalization, layer: GroupLayer) -> bool:
        """Rescale rows, bias and statistics."""
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


class ScaleToOutput(_Rescaling):
    """Scale the rows to what goes into the nonlinearity."""

    def rewrite(self, view: GraphView, norm: Normalization, layer: GroupLayer) -> bool:
        """Rescale rows, bias and statistics."""
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


@dataclass(frozen=True)
class AbsorbNorms(Pass):
    """Make the scale and the shift of every norm over some streams the same number for all channels."""

    groups: tuple[FoldGroup, ...]  # the streams; groups without norms stay as they are

    def run(self, view: GraphView) -> PassResult:
        """Rewrite weights; the graph stays."""
        changed = [_absorb(view, group, norm) for group in self.groups for norm in group.norms]
        return PassResult(any(changed))


def _absorb(view: GraphView, group: FoldGroup, norm: ScaledNorm) -> bool:
    scale = _values(view, group, norm.scale)
    shift = _values(view, group, norm.shift) if norm.shift else np.zeros_like(scale)
    if (scale == 1.0).all() and (shift == shift[0]).all() and shift[0] in (0.0, 1.0):
        return False
    for member in group.members:
        if member.axis in norm.readers:
            rows = rows_of(view, member)
            read = rows * scale[:, None, None]
            if shift.any():
                read += (np.tensordot(shift, rows, (0, 0)) - read.sum(axis=0)) / len(rows)
            put_rows_of(view, member, read)
    view.set_weight(norm.scale, np.ones_like(scale))
    if shift.any():
        view.set_weight(norm.shift, np.ones_like(shift))
    return True


def _values(view: GraphView, group: FoldGroup, weight: str) -> Matrix:
    """Return the value of a vector for every channel."""
    (member,) = (member for member in group.members if member.axis.tensor == weight)
    return per_unit(view, member)[:, 0].astype(np.float64)
