"""Search for the smallest model that keeps a fidelity: folds of one prepared model, by bisection."""

from dataclasses import dataclass, replace

from onnxfold.budget.width_request import WidthRequest
from onnxfold.config import FoldConfig
from onnxfold.errors import BudgetError, ConfigError, NothingToFoldError, VerificationError
from onnxfold.fidelity.measures import fidelity
from onnxfold.folding.choose_inputs import ChosenInputs
from onnxfold.folding.fold_model import FoldedModel, fold_model, model_candidates, request_widths
from onnxfold.folding.methods import Method
from onnxfold.folding.open_model import OpenedModel
from onnxfold.folding.prepare import prepare
from onnxfold.folding.written_model import written_model
from onnxfold.graph.save import to_model
from onnxfold.graph.session import Session
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.progress import Progress
from onnxfold.report import FidelityReport
from onnxfold.statistics.activations import Batches

#: The smallest sparsity that is tried, and the bound that none reaches.
LEAST, _MOST = 0.02, 0.98
_BISECTIONS = 6


@dataclass(frozen=True, eq=False)
class _Kept:
    """A fold whose fidelity holds."""

    folded: FoldedModel
    sparsity: float
    report: FidelityReport


def smallest_request(opened: OpenedModel, config: FoldConfig, method: Method) -> WidthRequest:
    """Return what the smallest fold of a search asks of the widths; that may be nothing, where layers are narrow.

    Raises
    ------
    BudgetError
        If it cannot be reached.
    ConfigError
        If the widths of all groups are given, so that there is nothing to search.
    """
    request = request_widths(opened, _at(config, LEAST), method, may_keep_all=True)
    if not request.space.free:
        raise ConfigError("min_fidelity decides how far to fold, and ratios and keep give the widths of all groups")
    return request


def fold_while_faithful(
    opened: OpenedModel,
    request: WidthRequest,
    data: ChosenInputs,
    config: FoldConfig,
    method: Method,
    progress: Progress,
) -> tuple[FoldedModel, tuple[str, ...]]:
    """Return the smallest of a series of folds whose fidelity on held-out inputs holds, and notes on it.

    Fidelity is the top-1 agreement with the original where an output has class scores, one minus the relative error
    otherwise; the lowest of all outputs. It is measured on what would be written, quantised if that is requested. The
    sparsity is found by bisection. The model is analysed, and what its groups could become is computed, once.

    Parameters
    ----------
    opened : OpenedModel
        The original; left as it is.
    request : WidthRequest
        What :func:`smallest_request` returned.
    data : ChosenInputs
        Three quarters of these inputs are shown to the folds; fidelity is measured on the last quarter.
    config : FoldConfig
        The request, with the fidelity to keep.
    method : Method
        The method.
    progress : callable
        Called for every step.

    Raises
    ------
    BudgetError
        If even the smallest fold says something else; with the fidelity that it has.
    ConfigError
        If there are too few inputs to hold some out.
    VerificationError
        If the network cannot be run.
    """
    if data.inputs is None:
        raise VerificationError(data.notes[0])
    least = config.min_fidelity or 0.0
    seen, held_out = data.inputs.split()
    prepared = prepare(opened, method, seen, config.seed)
    candidates = model_candidates(prepared, progress) if request.widths is None else None
    session = Session(opened.source)
    reference = session.run_all(held_out.batches)

    def fold(sparsity: float) -> FoldedModel:
        wanted = _at(config, sparsity)
        asked = request_widths(opened, wanted, method, may_keep_all=True)
        return fold_model(prepared.copy(), asked, candidates, wanted, progress)

    best: _Kept | None = None
    low, high = 0.0, _MOST
    sparsity, tried, reached, measured = LEAST, LEAST, 0.0, False
    unfolded: NothingToFoldError | None = None
    for _ in range(_BISECTIONS + 1):
        try:
            folded = fold(sparsity)
        except BudgetError:
            high = sparsity
        except NothingToFoldError as error:  # no channel goes yet, and nothing is lost
            low, unfolded = sparsity, error
        else:
            written = written_model(folded, data, config, progress)
            report = _measure(session.output_names, reference, written.view, held_out.batches)
            tried, reached, measured = sparsity, worst(report), True
            if reached >= least:
                best, low = _Kept(folded, sparsity, report), sparsity
            else:
                high = sparsity
        if low == 0.0:
            break
        sparsity = (low + high) / 2
    if unfolded is not None and not measured:
        raise unfolded
    if best is None:
        raise BudgetError(
            f"a fidelity of {least:g} cannot be kept: with {tried:.0%} of the weights removed it is {reached:.3g}; "
            "ask for less, or give --calibration"
        )
    note = (
        f"{worst(best.report):.1%} fidelity{confidence(best.report)} on {held_out.samples} held-out inputs at sparsity "
        f"{best.sparsity:.3f}"
    )
    return best.folded, (note,)


def _measure(names: list[str], reference: list[Array], view: GraphView, inputs: Batches) -> FidelityReport:
    """Return the fidelity of a fold; without outputs if it gives NaN or infinity where the original gives numbers."""
    outputs = Session(to_model(view)).run_all(inputs)
    try:
        return fidelity(names, reference, outputs, inputs="held out")
    except VerificationError:
        return FidelityReport([], 0, "held out")


def worst(report: FidelityReport) -> float:
    """Return the lowest fidelity of all outputs, 0 without any."""
    found = [1.0 - o.relative_error if o.top1_agreement is None else o.top1_agreement for o in report.outputs]
    return min(found, default=0.0)


def confidence(report: FidelityReport) -> str:
    """Return how sure the lowest fidelity is, in words, where it is an agreement of answers."""
    least = next((o for o in report.outputs if o.top1_agreement == worst(report)), None)
    if least is None or least.top1_interval is None:
        return ""
    low, high = least.top1_interval
    return f" (95 % confidence interval {low:.1%} to {high:.1%})"


def _at(config: FoldConfig, sparsity: float) -> FoldConfig:
    return replace(config, sparsity=sparsity, min_fidelity=None)
