"""The verdict on a comparison: what is kept, of what, and whether that is any use."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from onnxfold.fidelity.answers import AnswerKind
from onnxfold.report import DAMAGED, DESTROYED, KEPT, NOT_KNOWN, AgreementEstimate, Fidelity, FidelityReport, Verdict

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


#: By the kind of answer, in the order in which they are asked.
LIMITS: Mapping[str, tuple[Limits, ...]] = {
    AnswerKind.CLASSES: (Limits("top1_agreement", 0.9, 0.2, "{:.0%} of the original's answers (class scores)"),),
    AnswerKind.TOKENS: (Limits("top1_agreement", 0.9, 0.05, "{:.0%} of the original's likeliest tokens"),),
    AnswerKind.DENSE: (Limits("mean_iou", 0.8, 0.2, "a mean IoU of {:.2f} with the original's map of classes"),),
    AnswerKind.DETECTIONS: (  # at 3 dB on dead leaves, a YOLO named 3 % of its cells in photographs, at 9.7 dB 52 %
        Limits("boxes_kept", 0.9, 0.2, "{:.0%} of the original's detections (F1 of boxes)"),
        Limits("channel_snr_db", 20.0, 5.0, "the original's detections at {:.1f} dB (median of the channels)"),
        Limits("snr_db", 20.0, 0.0, "the original's detections at {:.1f} dB"),
    ),
    AnswerKind.EMBEDDING: (
        Limits("neighbours_kept", 0.9, 0.2, "{:.0%} of the nearest neighbours (embedding)"),
        Limits("cosine", 0.95, 0.2, "a cosine of {:.3f} with the original's embedding"),
    ),
    AnswerKind.REGRESSION: (Limits("snr_db", 20.0, 0.0, "the original's values at {:.1f} dB"),),
}


def verdict_on(
    measured: FidelityReport | None, why_not: str = "", *, estimate: AgreementEstimate | None = None, doubt: str = ""
) -> Verdict:
    """Return the verdict on a network, by the output that keeps least.

    A `doubt` says why answers on the measured inputs tell nothing of others: it takes the word of a verdict on class
    scores that are kept, and leaves a bad one.
    """
    states = [] if measured is None else [v for o in measured.outputs if (v := _output_state(o, estimate)) is not None]
    if measured is None or not states:
        return Verdict(NOT_KNOWN, kept=why_not or "no output could be compared")
    state, output, kept = max(states, key=lambda v: _STATES.index(v[0]))
    samples = f"{measured.samples} samples of {measured.inputs}"
    if doubt and state == KEPT and any(o.output == output and o.kind == AnswerKind.CLASSES for o in measured.outputs):
        return Verdict(NOT_KNOWN, output, f"{kept} are kept on {samples}, but {doubt}", samples, measured.is_generated)
    is_estimated = estimate is not None and estimate.output == output
    return Verdict(state, output, kept, samples, measured.is_generated and not is_estimated)


def _output_state(measured: Fidelity, estimate: AgreementEstimate | None) -> tuple[str, str, str] | None:
    """Return the state of an output, its name, and the kept share of it; None where nothing could be compared."""
    for limits in LIMITS.get(measured.kind, LIMITS[AnswerKind.REGRESSION]):
        value: float | None = getattr(measured, limits.measure)
        if value is None or value != value:
            continue
        state, what = limits.state(value), limits.what.format(value)
        if not isfinite(value):
            what = "all of the original's values"
        if estimate is not None and measured.kind == AnswerKind.CLASSES and estimate.output == measured.output:
            state = limits.state(estimate.agreement)
            what += f", on data about {estimate.agreement:.0%}"
        return state, measured.output, what
    return None
