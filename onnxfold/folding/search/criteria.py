"""Criteria of a search for the smallest model: what must be kept, measured on inputs that the folds are not shown.

A criterion is a value. It holds the held-out inputs and what the original answers on them, and judges what would be
written. The search (:mod:`onnxfold.folding.search.fidelity_search`) knows no more of it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from onnxfold.config.values import MOST_REMOVED
from onnxfold.errors import BudgetError, VerificationError
from onnxfold.fidelity.answer_measures import wilson_interval
from onnxfold.fidelity.estimate import estimate_agreement, names_one_class, share_interval
from onnxfold.fidelity.measures import correct_answers, drop_interval, fidelity, label_flips
from onnxfold.fidelity.verify import VerificationResult
from onnxfold.graph.files.save import to_model
from onnxfold.graph.nodes import is_quantized
from onnxfold.graph.run.session import Session
from onnxfold.graph.tensors import HALF_TYPES, Array
from onnxfold.graph.view import GraphView
from onnxfold.inputs.sample_kinds import DATA
from onnxfold.report import AccuracyRecord, Fidelity, FidelityReport
from onnxfold.report.records import Diagnostics
from onnxfold.statistics.activations import Batches


@dataclass(frozen=True)
class Judgement:
    """The judgement of a criterion on a fold."""

    holds: bool  # whether the fold keeps what must be kept
    margin: float  # by how much it does, below 0 where it does not; in the unit of the criterion
    reached: str  # what it keeps, for a refusal
    summary: str  # what it keeps, and how sure that is, for a note
    accuracy: AccuracyRecord | None = None  # accuracies, where they were judged


@dataclass(frozen=True, eq=False)
class Criterion(ABC):
    """The criterion that every fold of a search must meet."""

    view: GraphView  # the original: it says what kinds of answers the outputs are
    #: The bound of the sparsities, whether a fold may reach it, and how close the sparsity is looked for.
    most: ClassVar[float] = 0.98
    includes_most: ClassVar[bool] = False
    resolution: ClassVar[float] = 0.016
    refused: ClassVar[str]  # the form of a refusal
    names: list[str]  # outputs that are compared
    held_out: Batches  # batches of the inputs that decide
    samples: int
    reference: list[Array]  # what the original answers
    allowance: float  # the margin of the original itself: the answers, or points of accuracy, that may be lost

    def judge(self, view: GraphView) -> Judgement:
        """Run a fold, as it would be written, and judge it."""
        session = Session(to_model(view))
        session.output_names = self.names
        return self._judge(session.run_all(self.held_out))

    @abstractmethod
    def _judge(self, outputs: list[Array]) -> Judgement:
        """Judge outputs beside the original's."""

    def refusal(self, removed: float, reached: str) -> str:
        """Return why no fold holds, `reached` being the share that a fold keeps at the sparsity that was tried."""
        return self.refused.format(self, removed=removed, reached=reached)


@dataclass(frozen=True, eq=False)
class KeepsFidelity(Criterion):
    """Keeps the answers: top-1 agreement of class scores, else one minus the error, of the worst output."""

    least: float
    called: str = "held out"  # kind of the held-out inputs
    refused = (
        "a fidelity of {0.least:g} cannot be kept: with {removed:.0%} of the weights removed it is {reached}; "
        "ask for less, or give --calibration"
    )

    def _judge(self, outputs: list[Array]) -> Judgement:
        try:
            report = fidelity(
                self.names, self.reference, outputs, inputs=self.called, view=self.view, samples=self.samples
            )
        except VerificationError:  # NaN or infinite where the original gives numbers
            report = FidelityReport([], 0, self.called)
        kept, summary = self._kept(report)
        return Judgement(kept >= self.least, kept - self.least, f"{kept:.3g}", summary)

    def _kept(self, report: FidelityReport) -> tuple[float, str]:
        """Return the share of the answers that counts, and a summary of it."""
        kept, scores = _worst(report), _worst_scores(report)
        sure = ""
        if scores is not None and scores.top1_interval is not None:
            low, high = scores.top1_interval
            sure = f" (95 % confidence interval {low:.1%} to {high:.1%})"
        return kept, f"{kept:.1%} fidelity{sure} on {self.samples} held-out inputs"


@dataclass(frozen=True, eq=False)
class SurelyKeepsFidelity(KeepsFidelity):
    """Keeps the answers at the lower end of an 80 % interval: of the agreement on data where that can be estimated."""

    most = MOST_REMOVED
    includes_most = True
    resolution = 0.04  # every step costs a fold
    fit: str = ""  # kind of the inputs that folds are fitted on
    refused = (
        "without a goal a fold surely keeps {0.least:.0%} of the answers, and with {removed:.0%} of the weights "
        "removed it surely keeps {reached}, judged on {0.samples} inputs (--calibration gives more)"
    )

    def _kept(self, report: FidelityReport) -> tuple[float, str]:
        samples = report if self.fit == DATA else None
        estimate, _ = estimate_agreement(report, samples, self.fit, Diagnostics())
        low, summary = super()._kept(report)
        worst = _worst_scores(report)
        if estimate is not None:
            low = estimate.interval[0]
            summary = f"estimated agreement on data {estimate.agreement:.1%}"
        elif worst is not None and worst.top1_samples:
            low = share_interval(low, worst.top1_samples)[1][0]
            # Any fold keeps the answers of a class that all samples have.
            if self.fit != DATA and names_one_class(worst.most_frequent, worst.top1_samples):
                low, summary = min(low, 1.0 - worst.relative_error), f"{summary}, all of one class; of their scores"
        else:  # a relative error has no interval
            return low, summary
        return low, f"{summary}, at least {low:.1%} with 90 % confidence,"


@dataclass(frozen=True, eq=False)
class KeepsAccuracy(Criterion):
    """Keeps the top-1 accuracy on labelled samples, up to a drop."""

    labels: Array
    refused = (
        "a loss of at most {0.allowance:g} points of accuracy cannot be kept: with {removed:.0%} of the weights "
        "removed it is {reached} points on {0.samples} held-out samples; allow more"
    )

    def _judge(self, outputs: list[Array]) -> Judgement:
        before, after = correct_answers(self.reference, self.labels), correct_answers(outputs, self.labels)
        flips = label_flips(before, after)
        low, high = (100 * end for end in drop_interval(flips.lost, flips.won, self.samples))
        drop = 100 * (flips.lost - flips.won) / self.samples
        record = AccuracyRecord(
            float(before.mean()), float(after.mean()), self.samples, drop, (low, high), self.allowance, flips
        )
        # 5 of 100 samples are 5 points, whatever floats say.
        margin = self.allowance - drop
        return Judgement(margin >= -1e-9, margin, f"{drop:.3g}", str(record), record)


#: Largest relative error that is rounding: of types with few digits, and of others.
_COARSE, _FINE = 5e-3, 1e-4
#: The quantile of the normal distribution that leaves 0.05 % above it.
_Z999 = 3.2905267314919255


def require_fidelity(least: float | None, report: FidelityReport | None) -> None:
    """Refuse a result whose agreement on further inputs contradicts the fidelity that was asked for."""
    if least is None or report is None:
        return
    for output in report.outputs:
        share, count = output.top1_agreement, output.top1_samples
        if share is not None and count and wilson_interval(round(share * count), count, _Z999)[1] < least:
            raise BudgetError(
                f"a fidelity of {least:g} is not kept: output '{output.output}' agrees on {share:.1%} of "
                f"{count} further samples; ask for less, or give --calibration"
            )


def require_lossless(checked: VerificationResult, view: GraphView) -> None:
    """Refuse a result that computes other values than the original."""
    if checked.fidelity is None:
        why = "; ".join(checked.notes)
        raise VerificationError(f"whether nothing is lost could not be checked: {why}; --no-verify writes it unchecked")
    coarse = any(view.weight_type(name) in HALF_TYPES for name in view.float_weight_names())
    worst = max(checked.fidelity.outputs, key=lambda output: output.relative_error)
    if worst.relative_error > (_COARSE if coarse else _FINE):
        hint = "please report this"
        if any(map(is_quantized, view.nodes)):
            hint = "in a quantised model, one bit of rounding may become such a change: --no-verify writes it unchecked"
        raise VerificationError(
            f"nothing was written: output '{worst.output}' would change by {worst.relative_error:.3g}, which is more "
            f"than rounding; {hint}"
        )


def _worst(report: FidelityReport) -> float:
    """Return the lowest fidelity of all outputs that say something, 0 without any."""
    shares = [1.0 - o.error_of_variation if o.top1_agreement is None else o.top1_agreement for o in _telling(report)]
    return min(shares, default=0.0)


def _worst_scores(report: FidelityReport) -> Fidelity | None:
    """Return the output with the lowest fidelity, where that is an agreement of answers."""
    return next((o for o in _telling(report) if o.top1_agreement == _worst(report)), None)


def _telling(report: FidelityReport) -> list[Fidelity]:
    return [output for output in report.outputs if not output.says_nothing]
