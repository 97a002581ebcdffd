"""Diagnostics of a fold: error curves, variance ratios and correlations of activations."""

from collections.abc import Sequence
from dataclasses import dataclass

#: Bins of a correlation histogram, equally wide, over [-1, 1].
CORRELATION_BINS = 20


@dataclass(frozen=True)
class ErrorCurve:
    """Estimated error of a group by its width.

    Parameters
    ----------
    group : str
        Name of the fold group.
    widths : tuple of int
        Some of the widths that the group could have, ascending.
    errors : tuple of float
        Estimated relative error of the group's consumers, at each of them.
    width : int
        The width that was chosen.
    error : float
        The estimated error there.
    """

    group: str
    widths: tuple[int, ...]
    errors: tuple[float, ...]
    width: int
    error: float


@dataclass(frozen=True)
class VarianceRatio:
    """Var(x'_c(i)) / Var(x_i) over the original channels i of a layer, c(i) being the channel that i became part of.

    Near 1 is healthy; below 1 the activations collapse, above 1 they overshoot.

    Parameters
    ----------
    layer : str
        Name of the linear node; where a BatchNormalization alone reads it, the output of that is what was measured.
    mean, lower, upper : float
        Mean and quartiles over the channels; NaN where no channel could be compared.
    channels : int
        Number of channels that were compared.
    left_out : int
        Number of channels without a ratio: dropped by the fold, or constant on the inputs.
    """

    layer: str
    mean: float
    lower: float
    upper: float
    channels: int
    left_out: int


@dataclass(frozen=True)
class CorrelationHistogram:
    """Correlations of all pairs of a group's channels, as its first consumer sees them.

    Parameters
    ----------
    group : str
        Name of the fold group.
    before, after : tuple of int
        Number of pairs in each of `CORRELATION_BINS` bins over [-1, 1], of the original and of the folded network.
    """

    group: str
    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True)
class Diagnostics:
    """Diagnostics of a fold.

    Parameters
    ----------
    error_curves : tuple of ErrorCurve
        One per group whose curve was computed.
    variance_ratios : tuple of VarianceRatio
        One per layer, in the order of the graph.
    correlations : tuple of CorrelationHistogram
        One per group.
    samples : int
        Number of samples that both networks were run on.
    not_run : str
        Why they were not, if so.
    """

    error_curves: tuple[ErrorCurve, ...] = ()
    variance_ratios: tuple[VarianceRatio, ...] = ()
    correlations: tuple[CorrelationHistogram, ...] = ()
    samples: int = 0
    not_run: str = ""


def join_diagnostics(parts: Sequence[Diagnostics]) -> Diagnostics:
    """Return the diagnostics of several graphs of one model as one."""
    return Diagnostics(
        tuple(curve for part in parts for curve in part.error_curves),
        tuple(ratio for part in parts for ratio in part.variance_ratios),
        tuple(histogram for part in parts for histogram in part.correlations),
        max((part.samples for part in parts), default=0),
        next((part.not_run for part in parts if part.not_run), ""),
    )
