"""The verdict on a comparison, and the agreement with the original on data, estimated at the end of a fold.

Of samples that a user gave, some are held out of the fit (:mod:`onnxfold.inputs.model_inputs`): the agreement on these
is the estimate. Without samples, it follows from the agreement on held-out generated inputs, by a regression that
``python -m benchmarks.prediction`` measures on trained networks, and judges on those that it leaves out
(benchmarks/prediction.md). Where signs say that neither holds, nothing is estimated, and the reason is stated.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from onnxfold.fidelity.answer_measures import ENOUGH
from onnxfold.fidelity.answers import AnswerKind
from onnxfold.report import Fidelity, FidelityReport, Verdict
from onnxfold.report.closeness import DAMAGED, DESTROYED, KEPT, NOT_KNOWN, AgreementEstimate, Signs
from onnxfold.report.records import Diagnostics


@dataclass(frozen=True)
class Regression:
    """The agreement on data as a function of signs."""

    coefficients: tuple[float, float]  # a constant, and the factor of the logit of the agreement on held-out inputs
    #: Bounds that hold 80 % of the residuals of networks that are left out, in units of :meth:`noise`.
    spread: tuple[float, float]

    def at(self, signs: Signs) -> tuple[float, tuple[float, float]]:
        """Return the agreement and its interval for signs."""
        middle, noise = self.middle(signs), self.noise(signs)
        low, high = (_share(middle + shift * noise) for shift in self.spread)
        return _share(middle), (low, high)

    def middle(self, signs: Signs) -> float:
        """Return the logit of the estimate."""
        constant, slope = self.coefficients
        return constant + slope * logit(signs.held_out_agreement, signs.held_out_samples)

    def noise(self, signs: Signs) -> float:
        """Return the standard deviation of that logit: of networks, of the share that samples show, and of a point."""
        share = (signs.held_out_agreement * signs.held_out_samples + 0.5) / (signs.held_out_samples + 1.0)
        counted = self.coefficients[1] / math.sqrt(signs.held_out_samples * share * (1.0 - share))
        agreement = min(max(_share(self.middle(signs)), _SUREST), 1.0 - _SUREST)
        return math.hypot(_NETWORKS, counted, _SUREST / (agreement * (1.0 - agreement)))


#: Standard deviation among networks, in logits; 0.2 to 0.4 give intervals that hold as often.
_NETWORKS = 0.3
#: Standard deviation of an agreement that no sign can undercut: near 100 %, networks differ by a point.
_SUREST = 0.01
#: Folds on generated inputs.
REGRESSION = Regression((0.37, 1.37), (-0.84, 2.37))
#: Below this agreement on generated inputs, networks differ too much to say what it means on data.
_LEAST_AGREEMENT = 0.7
#: Below this variety of the original's answers, inputs are of another kind than data: of folds on generated inputs a
#: MobileNet for 1,000 classes has 0.09, others 0.4 and more; of samples, crops of two photographs have 0.1 to 0.77,
#: images of the right kind 0.91 and more.
_LEAST_VARIETY = {"dead-leaves": 0.2, "deep-inversion": 0.2, "data": 0.8}
_TELLS = "labels (--data, --max-drop) or 200 unlabeled images (--calibration) would tell"
#: The share of one class from which on generated inputs tell nothing of others, and that where few answers are others.
_ONE_CLASS, _NEARLY = 0.99, 0.9
#: The relative error of outputs that are the same up to rounding.
_EXACT = 1e-6
#: Held-out samples below which an interval says nothing.
_FEWEST = 12


def logit(share: float, samples: int) -> float:
    """Return the logit of a share, with half a sample more on either side so that it is finite."""
    return math.log((share * samples + 0.5) / ((1.0 - share) * samples + 0.5))


def estimate_agreement(
    generated: FidelityReport | None, samples: FidelityReport | None, inputs: str, diagnostics: Diagnostics
) -> tuple[AgreementEstimate | None, str]:
    """Return the estimated agreement on data of the output for which it is lowest."""
    known = signs_of(generated, samples, inputs, diagnostics)
    if known is None:
        return None, ""
    output, signs = known
    doubt = doubt_of(signs)
    return (None, f"{doubt}; {_TELLS}") if doubt else (estimate(output, signs), "")


def signs_of(
    generated: FidelityReport | None, samples: FidelityReport | None, inputs: str, diagnostics: Diagnostics
) -> tuple[str, Signs] | None:
    """Return the output whose answers agree least, and its signs; None where there is nothing to estimate."""
    is_data = inputs == "data"
    if generated is None or inputs not in _LEAST_VARIETY or not (is_data or generated.inputs.endswith("dead leaves")):
        return None
    seen = samples if is_data and samples is not None else generated
    scores = [output for output in seen.outputs if output.top1_agreement is not None]
    if not scores:
        return None
    lowest = min(scores, key=lambda output: output.top1_agreement or 0.0)
    count = 0 if is_data and samples is None else lowest.top1_samples or 0
    lost = sum(curve.error for curve in diagnostics.error_curves) if diagnostics.error_curves else None
    agreement = lowest.top1_agreement if lowest.expected_agreement is None else lowest.expected_agreement
    return lowest.output, Signs(
        inputs, agreement or 0.0, count, lowest.relative_error, lost, lowest.top1_variety or 0.0,
        lowest.most_frequent or 0.0,
    )  # fmt: skip


def doubt_of(signs: Signs) -> str:
    """Return why no estimate holds; empty where it does."""
    called = "given samples" if signs.inputs == "data" else "generated inputs"
    if not signs.held_out_samples:
        return "the samples are too few to hold some out"
    if signs.held_out_samples < _FEWEST:
        return f"only {signs.held_out_samples} samples were held out"
    if signs.variety < _LEAST_VARIETY[signs.inputs]:
        share = f"{signs.variety:.0%} of the variety"
        return f"the original's answers on {called} have {share} that evenly drawn classes have"
    if signs.inputs == "data":
        return ""
    if signs.held_out_agreement < _LEAST_AGREEMENT:
        return f"on {called} only {signs.held_out_agreement:.0%} of the answers are kept"
    return _one_class(signs.most_frequent, signs.held_out_samples)


def _one_class(share: float | None, samples: int | None) -> str:
    """Return the doubt that one class in nearly all answers casts on generated inputs."""
    if not names_one_class(share, samples):
        return ""
    return f"the original names one class in {share:.0%} of its answers on generated inputs"


def names_one_class(share: float | None, samples: int | None) -> bool:
    """Whether the most frequent class has such a share of the answers that any fold keeps nearly as many."""
    if share is None or share < _NEARLY:
        return False
    return share >= _ONE_CLASS or (samples is not None and (1.0 - share) * samples < ENOUGH)


def estimate(output: str, signs: Signs) -> AgreementEstimate:
    """Return the estimate that follows from signs without a doubt."""
    if signs.inputs == "data":
        return AgreementEstimate(output, *share_interval(signs.held_out_agreement, signs.held_out_samples), signs)
    return AgreementEstimate(output, *REGRESSION.at(signs), signs)


def share_interval(share: float, samples: int) -> tuple[float, tuple[float, float]]:
    """Return a share and its 80 % interval, as samples show them: mean and quantiles of Jeffreys' posterior."""
    from scipy.special import betaincinv  # takes a while to import

    kept = share * samples
    low, high = betaincinv(kept + 0.5, samples - kept + 0.5, (0.1, 0.9))
    return (kept + 0.5) / (samples + 1.0), (float(low), float(high))


def _share(logits: float) -> float:
    return 1.0 / (1.0 + math.exp(-logits))


_STATES = (KEPT, DAMAGED, DESTROYED)


@dataclass(frozen=True)
class Limits:
    """The limits of a measure between kept, damaged and destroyed answers."""

    #: A field of :class:`~onnxfold.report.Fidelity`; it decides where those before it in the table are not known.
    measure: str
    kept: float  # from here on the answers are kept; below it they are damaged
    #: Below this nothing useful is left. Generated inputs lie near the borders of classes, so this is low.
    destroyed: float
    what: str  # what is kept, in words; a percentage, or a ratio in dB, is filled in

    def state(self, value: float) -> str:
        """Return 'kept', 'damaged' or 'destroyed'."""
        return KEPT if value >= self.kept else DESTROYED if value < self.destroyed else DAMAGED


_BOXES = Limits("boxes_kept", 0.9, 0.2, "{:.0%} of the original's detections (F1 of boxes)")
_MAPS = Limits("mean_iou", 0.8, 0.2, "a mean IoU of {:.2f} with the original's map of classes")
#: By the kind of answer, in the order in which they are asked.
LIMITS: Mapping[str, tuple[Limits, ...]] = {
    AnswerKind.CLASSES: (Limits("top1_agreement", 0.9, 0.2, "{:.0%} of the original's answers (class scores)"),),
    AnswerKind.TOKENS: (  # readers of text name the blank between characters most of the time
        Limits("rare_agreement", 0.9, 0.05, "{:.0%} of the original's tokens other than its most frequent one"),
        Limits("top1_agreement", 0.9, 0.05, "{:.0%} of the original's likeliest tokens"),
    ),
    AnswerKind.NUMBERED: (
        _MAPS,
        Limits("rare_agreement", 0.9, 0.05, "{:.0%} of the original's answers other than its most frequent one"),
        Limits("top1_agreement", 0.9, 0.2, "{:.0%} of the original's answers (numbers of classes)"),
    ),
    AnswerKind.DENSE: (_MAPS,),
    AnswerKind.DETECTIONS: (  # at 3 dB on dead leaves, a YOLO named 3 % of its cells in photographs, at 9.7 dB 52 %
        _BOXES,
        Limits("channel_snr_db", 20.0, 5.0, "the original's detections at {:.1f} dB (median of the channels)"),
        Limits("snr_db", 20.0, 3.0, "the original's detections at {:.1f} dB"),
    ),
    AnswerKind.LISTED: (_BOXES,),
    AnswerKind.EMBEDDING: (
        Limits("neighbours_kept", 0.9, 0.2, "{:.0%} of the nearest neighbours (embedding)"),
        Limits("cosine", 0.95, 0.2, "a cosine of {:.3f} with the original's embedding"),
    ),
    AnswerKind.REGRESSION: (Limits("snr_db", 20.0, 3.0, "the original's values at {:.1f} dB"),),  # zeros have 0 dB
}


def verdict_on(
    measured: FidelityReport | None, why_not: str = "", *, estimate: AgreementEstimate | None = None, doubt: str = "",
    is_lossy: bool = False,
) -> Verdict:  # fmt: skip
    """Return the verdict on a network, by the output that keeps least.

    A `doubt` says why answers on the measured inputs tell nothing of others: it takes the word of a verdict on class
    scores that are kept, and leaves a bad one. So does one answer everywhere on generated inputs, of maps and tokens,
    too: a text detector finds no text in them. And so do the very same values after a lossy fold, of any kind.
    """
    if measured is None:
        return Verdict(NOT_KNOWN, kept=why_not or "no output could be compared")
    samples = f"{measured.samples} samples of {measured.inputs}"
    still = [output for output in measured.outputs if measured.is_generated and _hardly_varies(output)]
    varied = [output for output in measured.outputs if output not in still]
    states = [v for output in varied if (v := _output_state(output, estimate)) is not None]
    if not states:
        why = "no output could be compared"
        if any(output.kind == AnswerKind.LISTED for output in measured.outputs):
            why = f"the original finds hardly anything on {samples}: --calibration with real samples would tell"
        elif any(output.is_constant for output in measured.outputs):
            why = f"the original's values are the same on all {samples}"
        elif still:
            error = 100.0 * max(output.relative_error for output in still)
            why = f"the original's values hardly vary on {samples}: by less than the error, {error:.2g} % of their size"
        return Verdict(NOT_KNOWN, kept=why, measured_on=samples, only_generated=measured.is_generated)
    state, speaks, kept, _ = max(states, key=lambda v: (_STATES.index(v[0]), -v[3]))
    doubt = doubt if speaks.kind == AnswerKind.CLASSES else ""
    if measured.is_generated and speaks.relative_error > _EXACT:
        doubt = doubt or _one_class(speaks.most_frequent, speaks.top1_samples)
    elif measured.is_generated and is_lossy and not speaks.relative_error:  # units that are never active, for instance
        doubt = "nothing that was folded reaches an output on them: --calibration with real samples would tell"
    if doubt and state == KEPT:
        return Verdict(
            NOT_KNOWN, speaks.output, f"it keeps {kept} on {samples}, but {doubt}", samples, measured.is_generated
        )
    is_estimated = estimate is not None and estimate.output == speaks.output
    return Verdict(state, speaks.output, kept, samples, measured.is_generated and not is_estimated)


def _is_chance(measured: Fidelity) -> bool:
    """Whether two networks that know nothing of each other agree as often, within a standard error."""
    agreement, chance, samples = measured.top1_agreement, measured.chance_agreement, measured.top1_samples
    if agreement is None or chance is None or not samples:
        return False
    return agreement <= chance + math.sqrt(chance * (1.0 - chance) / samples)


def _hardly_varies(measured: Fidelity) -> bool:
    """Whether values lie close to the original's, and farther from them than these do from their means."""
    limits = LIMITS[AnswerKind.REGRESSION][0]
    if measured.kind not in ("", AnswerKind.REGRESSION) or measured.snr_db is None or not measured.relative_error:
        return False
    close = limits.state(-20 * math.log10(measured.relative_error)) == KEPT
    return close and limits.state(measured.snr_db) == DESTROYED


def _output_state(measured: Fidelity, estimate: AgreementEstimate | None) -> tuple[str, Fidelity, str, float] | None:
    """Return the state of an output, itself, what is kept of it, and how far that is above the limit of its measure.

    None where nothing could be compared.
    """
    if measured.says_nothing:
        return None
    for limits in LIMITS.get(measured.kind, LIMITS[AnswerKind.REGRESSION]):
        value: float | None = getattr(measured, limits.measure)
        if value is None or math.isnan(value):
            continue
        state, what = limits.state(value), limits.what.format(value)
        if math.isinf(value):
            what = "all of the original's values"
        if estimate is not None and measured.kind == AnswerKind.CLASSES and estimate.output == measured.output:
            state = limits.state(estimate.agreement)
            what += f", on data about {estimate.agreement:.0%}"
        if state == DAMAGED and limits.measure == "top1_agreement" and _is_chance(measured):
            state, what = DESTROYED, f"{what}, as many as by chance"
        return state, measured, what, (value - limits.kept) / (limits.kept - limits.destroyed)
    return None
