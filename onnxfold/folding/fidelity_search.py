"""How far a model can be folded before it says something else."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from onnx import ModelProto

from onnxfold.errors import BudgetError, VerificationError
from onnxfold.fidelity.measures import fidelity
from onnxfold.graph.load import ModelLike
from onnxfold.graph.session import Session
from onnxfold.graph.tensors import Array
from onnxfold.report import FidelityReport
from onnxfold.statistics.activations import Batches

#: The smallest sparsity that is tried, and the bound that none reaches.
LEAST, _MOST = 0.02, 0.98
_BISECTIONS = 6


class Folded(Protocol):
    """A folded model."""

    @property
    def model(self) -> ModelProto:
        """The model."""
        ...


F = TypeVar("F", bound=Folded)


def fold_while_faithful(
    model: ModelLike, least: float, inputs: Batches, fold: Callable[[float], F]
) -> tuple[F, float, FidelityReport]:
    """Return the smallest of a series of folds whose fidelity holds, its sparsity and its fidelity.

    Fidelity is the top-1 agreement with the original where an output has class scores, one minus the
    relative error otherwise; the lowest of all outputs. The sparsity is found by bisection.

    Parameters
    ----------
    model : path or ModelProto
        The original.
    least : float
        Fidelity to keep, in (0, 1).
    inputs : list of dict
        Batches that the folds do not see.
    fold : callable
        Takes a sparsity, returns a folded model; raises BudgetError where it cannot be reached.

    Raises
    ------
    BudgetError
        If even the smallest fold says something else; with the fidelity that it has.
    """
    session = Session(model)
    reference = session.run_all(inputs)
    best: tuple[F, float, FidelityReport] | None = None
    low, high = 0.0, _MOST
    sparsity, told = LEAST, 0.0
    for _ in range(_BISECTIONS + 1):
        try:
            folded = fold(sparsity)
        except BudgetError:
            high = sparsity
        else:
            report, told = _measure(session.output_names, reference, folded.model, inputs)
            if told >= least:
                best, low = (folded, sparsity, report), sparsity
            else:
                high = sparsity
        if best is None:
            break
        sparsity = (low + high) / 2
    if best is None:
        raise BudgetError(
            f"a fidelity of {least:g} cannot be kept: with {sparsity:.0%} of the weights removed it is {told:.3g}; "
            "ask for less, or give --calibration"
        )
    return best


def _measure(
    names: list[str], reference: list[Array], folded: ModelProto, inputs: Batches
) -> tuple[FidelityReport, float]:
    """Return the fidelity of a fold; none of one that gives NaN or infinity where the original gives numbers."""
    outputs = Session(folded).run_all(inputs)
    try:
        report = fidelity(names, reference, outputs, inputs="held out")
    except VerificationError:
        return FidelityReport([], 0, "held out"), 0.0
    return report, worst(report)


def worst(report: FidelityReport) -> float:
    """Return the lowest fidelity of all outputs."""
    found = [1.0 - o.relative_error if o.top1_agreement is None else o.top1_agreement for o in report.outputs]
    return min(found, default=0.0)


def confidence(report: FidelityReport) -> str:
    """Return how sure the lowest fidelity is, in words, where it is an agreement of answers."""
    least = next((o for o in report.outputs if o.top1_agreement == worst(report)), None)
    if least is None or least.top1_interval is None:
        return ""
    low, high = least.top1_interval
    return f" (95 % confidence interval {low:.1%} to {high:.1%})"
