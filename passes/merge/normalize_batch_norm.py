"""Move the division of BatchNormalization into rows of the layer before it; docs/mathematics.md has the formulas."""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from onnxfold.channels.declarations import Axis, Norm
from onnxfold.channels.group import FoldGroup, per_unit, put_rows_of, rows_of, scale_units, set_per_unit
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
        changed = [_absorb(view, group, *norm) for group in self.groups for norm in group.norms.items()]
        return PassResult(any(changed))


def _absorb(view: GraphView, group: FoldGroup, norm: Norm, readers: tuple[Axis, ...]) -> bool:
    scale = _values(view, group, norm.scale)
    shift = _values(view, group, norm.shift) if norm.shift else np.zeros_like(scale)
    if (scale == 1.0).all() and (shift == shift[0]).all() and shift[0] in (0.0, 1.0):
        return False
    for member in group.members:
        if member.axis in readers:
            rows = rows_of(view, member)
            read = rows * scale[:, None, None]
            if shift.any():
                read += (np.tensordot(shift, rows, (0, 0)) - read.sum(axis=0)) / len(rows)
            put_rows_of(view, member, read)
    view.set_weight(norm.scale.tensor, np.ones_like(scale))
    if norm.shift and shift.any():
        view.set_weight(norm.shift.tensor, np.ones_like(shift))
    return True


def _values(view: GraphView, group: FoldGroup, vector: Axis) -> Matrix:
    (member,) = (member for member in group.members if member.axis == vector)
    return per_unit(view, member)[:, 0].astype(np.float64)
