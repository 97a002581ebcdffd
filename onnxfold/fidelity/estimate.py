"""Agreement with the original on data, estimated from what a fold knows without data.

Generated inputs lie nearer to the borders of classes than data do, so agreement on them is too low where a network is
good, and tells little where the fold was fitted on them. The estimate is a regression of the logit of the agreement on
real images on the signs of a fold; ``python -m benchmarks.prediction`` measures its table, and how well it holds for
networks that had no part in it (benchmarks/prediction.md).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onnxfold.report import AgreementEstimate, Diagnostics, FidelityReport, Signs

#: Relative errors outside of this are no better or worse.
_ERRORS = (1e-3, 2.0)


@dataclass(frozen=True)
class Regression:
    """What was measured for folds on one origin of inputs.

    Parameters
    ----------
    coefficients : tuple of float
        Coefficients of the features, in their order.
    spread : pair of float
        The tenth and the ninetieth percentile of what the estimate misses, in logits, for networks that had no part in
        it.
    """

    coefficients: tuple[float, ...]
    spread: tuple[float, float]

    def at(self, values: Sequence[float]) -> tuple[float, tuple[float, float]]:
        """Return the agreement and its interval for features."""
        middle = math.fsum(a * b for a, b in zip(values, self.coefficients, strict=True))
        low, high = (_share(middle + shift) for shift in self.spread)
        return _share(middle), (low, high)


#: By what a fold was fitted on.
GENERATED, DATA = "generated", "data"
REGRESSIONS = {
    GENERATED: Regression((0.24, 0.43, 0.72, -0.17), (-0.6, 0.8)),
    DATA: Regression((0.32, 0.62), (-0.33, 1.05)),
}
#: The kind that held-out images are of.
_HELD_OUT = "dead-leaves"
#: By the kind of the inputs; folds on others had no part.
_ORIGINS = {"deep-inversion": GENERATED, "dead-leaves": GENERATED, "data": DATA}


def features(signs: Signs) -> tuple[float, ...]:
    """Return what the regression takes of signs.

    Parameters
    ----------
    signs : Signs
        Signs of a fold.

    Returns
    -------
    tuple of float
        A constant, the logit of the agreement on the inputs of the fit; for generated inputs also that on held-out
        ones, and the logarithm of the relative error on these. To a fold on data, generated inputs are foreign. A fold
        on dead leaves is judged by held-out ones alone: they are of the same kind, and it cannot have overfitted them.
    """
    fitted = held_out = logit(signs.held_out_agreement, signs.held_out_samples)
    if takes_fitted(signs.inputs) and signs.fitted_agreement is not None:
        fitted = logit(signs.fitted_agreement, signs.fitted_samples)
    if _ORIGINS[signs.inputs] == DATA:
        return 1.0, fitted
    error = min(max(signs.held_out_error, _ERRORS[0]), _ERRORS[1])
    return 1.0, fitted, held_out, math.log(error)


def logit(share: float, samples: int) -> float:
    """Return the logit of a share, with half a sample more on either side so that it is finite.

    Parameters
    ----------
    share : float
        Share of the samples, in [0, 1].
    samples : int
        Their number.
    """
    return math.log((share * samples + 0.5) / ((1.0 - share) * samples + 0.5))


def is_calibrated(held_out: FidelityReport, inputs: str) -> bool:
    """Whether agreement on data can be estimated at all: for classifiers of images that were folded on known inputs.

    Parameters
    ----------
    held_out : FidelityReport
        Closeness on held-out generated inputs.
    inputs : str
        Kind of the inputs that the fold was fitted on.
    """
    names_classes = any(output.top1_agreement is not None for output in held_out.outputs)
    return names_classes and inputs in _ORIGINS and held_out.inputs.endswith("dead leaves")


def takes_fitted(inputs: str) -> bool:
    """Whether the estimate takes the agreement on the inputs of the fit: not where held-out ones are of their kind.

    Parameters
    ----------
    inputs : str
        Kind of the inputs that the fold was fitted on.
    """
    return inputs != _HELD_OUT


def estimate_agreement(
    held_out: FidelityReport | None, fitted: FidelityReport | None, inputs: str, diagnostics: Diagnostics
) -> AgreementEstimate | None:
    """Return the estimated agreement on data of the output for which it is lowest.

    Parameters
    ----------
    held_out : FidelityReport, optional
        Closeness on held-out generated inputs.
    fitted : FidelityReport, optional
        Closeness on the inputs that the fold was fitted on; needed where :func:`takes_fitted` says so.
    inputs : str
        Kind of the latter.
    diagnostics : Diagnostics
        With the error curves.

    Returns
    -------
    AgreementEstimate or None
        None where no output names classes, where the network does not read images, or where no inputs were measured:
        the estimate was calibrated on classifiers of images.
    """
    if held_out is None or not is_calibrated(held_out, inputs):
        return None
    curves = diagnostics.error_curves
    curve_error = sum(curve.error for curve in curves) if curves else None
    seen = {one.output: (one.top1_agreement, one.top1_samples or 0) for one in fitted.outputs} if fitted else {}
    found = []
    for one in held_out.outputs:
        agreement, samples = seen.get(one.output, (None, 0))
        if one.top1_agreement is None or (agreement is None and takes_fitted(inputs)):
            continue
        known = (one.top1_agreement, one.top1_samples or 0, one.relative_error)
        found.append(estimate(one.output, Signs(inputs, agreement, samples, *known, curve_error)))
    return min(found, key=lambda one: one.agreement, default=None)


def estimate(output: str, signs: Signs) -> AgreementEstimate:
    """Return the estimate that follows from signs.

    Parameters
    ----------
    output : str
        Name of the output.
    signs : Signs
        Signs of the fold.
    """
    return AgreementEstimate(output, *REGRESSIONS[_ORIGINS[signs.inputs]].at(features(signs)), signs)


def _share(logits: float) -> float:
    return 1.0 / (1.0 + math.exp(-logits))
