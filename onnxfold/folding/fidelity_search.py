"""Search for the smallest model that keeps an agreement or an accuracy: folds of one prepared model, by bisection."""

from dataclasses import dataclass, replace

from onnxfold.budget.width_request import WidthRequest
from onnxfold.config import FoldConfig
from onnxfold.errors import BudgetError, ConfigError, NothingToFoldError, VerificationError
from onnxfold.fidelity.measures import correct_answers
from onnxfold.folding.choose_inputs import ChosenInputs
from onnxfold.folding.criteria import Criterion, KeepsAccuracy, KeepsFidelity, Verdict
from onnxfold.folding.fold_model import FoldedModel, fold_model, model_candidates, request_widths
from onnxfold.folding.methods import Method
from onnxfold.folding.open_model import OpenedModel
from onnxfold.folding.prepare import prepare
from onnxfold.folding.written_model import written_model
from onnxfold.graph.session import Session
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.progress import Progress
from onnxfold.report import AccuracyRecord

#: The smallest sparsity that is tried, and the bound that none reaches.
LEAST, _MOST = 0.02, 0.98
_BISECTIONS = 6


@dataclass(frozen=True, eq=False)
class _Kept:
    """A fold that keeps what must be kept."""

    folded: FoldedModel
    sparsity: float
    verdict: Verdict


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
        raise ConfigError(
            f"{config.searched} decides how far to fold, and ratios and keep give the widths of all groups"
        )
    return request


def find_criterion(opened: OpenedModel, data: ChosenInputs, config: FoldConfig) -> tuple[Criterion, ModelInputs]:
    """Return what a search must keep, and the inputs that its folds are shown.

    Parameters
    ----------
    opened : OpenedModel
        The original.
    data : ChosenInputs
        What the network is run on; without labelled samples, fidelity is kept on the last quarter of the inputs.
    config : FoldConfig
        The request.

    Raises
    ------
    ConfigError
        If there are too few inputs to hold some out, or labels do not fit.
    VerificationError
        If the network cannot be run.
    """
    if data.inputs is None:
        raise VerificationError(data.notes[0])
    session = Session(opened.source)
    names = session.output_names
    labelled = data.labelled
    if labelled is None:
        seen, held_out = data.inputs.split()
        reference = session.run_all(held_out.batches)
        least = config.min_fidelity or 0.0
        return KeepsFidelity(names, held_out.batches, held_out.samples, reference, least), seen
    labels, most_drop = labelled.labels, config.max_drop or 0.0
    reference = session.run_all(labelled.held_out)
    correct_answers(reference, labels)  # labels that do not fit are refused before any fold
    return KeepsAccuracy(names, labelled.held_out, len(labels), reference, labels, most_drop), data.inputs


def smallest_fold(
    opened: OpenedModel,
    request: WidthRequest,
    seen: ModelInputs,
    criterion: Criterion,
    config: FoldConfig,
    method: Method,
    progress: Progress,
) -> tuple[FoldedModel, AccuracyRecord | None, tuple[str, ...]]:
    """Return the smallest of a series of folds that keeps what must be kept, its accuracy if judged, and notes on it.

    It is judged by what would be written, quantised if that is requested. The sparsity is found by bisection. The model
    is analysed, and what its groups could become is computed, once.

    Parameters
    ----------
    opened : OpenedModel
        The original; left as it is.
    request : WidthRequest
        What :func:`smallest_request` returned.
    seen : ModelInputs
        What the folds are shown.
    criterion : Criterion
        What must be kept.
    config : FoldConfig
        The request.
    method : Method
        The method.
    progress : callable
        Called for every step.

    Raises
    ------
    BudgetError
        If even the smallest fold does not keep it; with what it does keep.
    VerificationError
        If the network cannot be run.
    """
    prepared = prepare(opened, method, seen, config.seed, keeps_refits=config.merge_map)
    candidates = model_candidates(prepared, progress) if request.widths is None else None

    def fold(sparsity: float) -> FoldedModel:
        wanted = _at(config, sparsity)
        asked = request_widths(opened, wanted, method, may_keep_all=True)
        return fold_model(prepared.copy(), asked, candidates, wanted, progress)

    best: _Kept | None = None
    low, high = 0.0, _MOST
    sparsity, tried, reached = LEAST, LEAST, ""
    unfolded: NothingToFoldError | None = None
    for _ in range(_BISECTIONS + 1):
        try:
            folded = fold(sparsity)
        except BudgetError:
            high = sparsity
        except NothingToFoldError as error:  # no channel goes yet, and nothing is lost
            low, unfolded = sparsity, error
        else:
            written = written_model(folded, ChosenInputs(seen), config, progress)
            verdict = criterion.judge(written.view)
            tried, reached = sparsity, verdict.reached
            if verdict.holds:
                best, low = _Kept(folded, sparsity, verdict), sparsity
            else:
                high = sparsity
        if low == 0.0:
            break
        sparsity = (low + high) / 2
    if unfolded is not None and not reached:
        raise unfolded
    if best is None:
        raise BudgetError(criterion.refusal(tried, reached or "not known"))
    return best.folded, best.verdict.accuracy, (f"{best.verdict.told} at sparsity {best.sparsity:.3f}",)


def _at(config: FoldConfig, sparsity: float) -> FoldConfig:
    return replace(config, sparsity=sparsity, min_fidelity=None, max_drop=None, data=None)
