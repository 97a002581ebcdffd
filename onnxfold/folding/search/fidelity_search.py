"""Search for the smallest model that keeps an agreement or an accuracy: folds of one prepared model, by bisection."""

from dataclasses import dataclass, replace

from onnxfold.budget.width_request import WidthRequest
from onnxfold.config import FoldConfig
from onnxfold.config.values import EXACT, FAITHFUL, MOST_REMOVED
from onnxfold.errors import BudgetError, ConfigError, NothingToFoldError, VerificationError
from onnxfold.fidelity.held_out import held_out_inputs
from onnxfold.fidelity.measures import correct_answers
from onnxfold.folding.fold_model import Decision, FoldedModel, fold_model
from onnxfold.folding.fold_task import FoldTask
from onnxfold.folding.inputs.choose_inputs import ChosenInputs
from onnxfold.folding.methods import find_method
from onnxfold.folding.open_model import OpenedModel
from onnxfold.folding.prepare import PreparedModel, may_shrink
from onnxfold.folding.search.criteria import Criterion, Judgement, KeepsAccuracy, KeepsFidelity, SurelyKeepsFidelity
from onnxfold.graph.files.load import load
from onnxfold.graph.run.session import Session, count_samples, joined_outputs
from onnxfold.graph.tensors import Array
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.inputs.tokens.cache_heads import comparable_outputs
from onnxfold.statistics.activations import Batches

#: Part of the bracket that a point keeps from its ends.
_INSET = 0.1
_TINY = 1e-12


@dataclass(frozen=True)
class Bracket:
    """Sparsities on both sides of the largest one at which the criterion holds.

    Every point costs a fold, so the next one is that of regula falsi in the Illinois form (M. Dowell, P. Jarratt, "A
    modified regula falsi method for computing the root of an equation", BIT 11, 1971). Margins of folds are noisy and
    have steps: where two points together do not halve the bracket, the next one is its middle.
    """

    low: float  # A sparsity at which it is kept, and one at which it is not
    high: float
    spare: float  # margin at `low`, at least 0
    lack: float | None = None  # what is missing at `high`, above 0; None where no fold could tell
    moved: str = ""  # which end moved last, '' at the beginning
    widths: tuple[float, ...] = ()  # widths of the brackets before, the last one last

    @property
    def width(self) -> float:
        """Distance of the ends."""
        return self.high - self.low

    @property
    def point(self) -> float:
        """The sparsity to try next, inside the bracket."""
        slow = len(self.widths) >= 2 and self.width > self.widths[-2] / 2
        if self.lack is None or slow:
            return self.low + self.width / 2
        share = self.spare / max(self.spare + self.lack, _TINY)
        return self.low + self.width * min(max(share, _INSET), 1.0 - _INSET)

    def kept_at(self, sparsity: float, spare: float) -> "Bracket":
        """Return the bracket after a fold for which the criterion holds, with a margin."""
        lack = self.lack / 2 if self.lack is not None and self.moved == "low" else self.lack
        return Bracket(sparsity, self.high, max(spare, 0.0), lack, "low", (*self.widths, self.width))

    def lost_at(self, sparsity: float, lack: float | None) -> "Bracket":
        """Return the bracket after a fold that does not, or cannot be made."""
        spare = self.spare / 2 if self.moved == "high" else self.spare
        return Bracket(self.low, sparsity, spare, lack, "high", (*self.widths, self.width))


_NOTHING = (
    "nothing to save without loss: no weight is stored twice, and no channel is dead or the duplicate of another; the "
    "output is a copy of the model"
)
#: The smallest sparsity that is tried.
LEAST = 0.02
#: Added to the seed, so that the inputs that decide are not those that the result is verified on.
_APART = 1 << 32
#: Inputs and answers that are kept to decide on.
_KEPT_BYTES = 512 << 20


def smallest_request(task: FoldTask) -> WidthRequest:
    """Return the demands of a search's smallest fold on the widths; there may be none, where layers are narrow."""
    request = _task_at(task, LEAST).request(may_keep_all=True)
    if not request.space.free:
        decides = task.config.search_option or "the default goal"
        raise ConfigError(f"{decides} decides how far to fold, and ratios and keep give the widths of all groups")
    return request


def find_criterion(opened: OpenedModel, data: ChosenInputs, config: FoldConfig) -> tuple[Criterion, ModelInputs]:
    """Return the criterion of a search, and the inputs that its folds are shown."""
    if data.inputs is None:
        raise VerificationError(data.notes[0])
    session = Session(opened.source)
    names = session.output_names = comparable_outputs(session.output_names, opened.view.output_names)
    labelled = data.labelled
    if labelled is None:
        seen, facts = data.inputs, data.inputs.facts
        # An estimate of the agreement on data is calibrated on dead leaves.
        if facts.is_drawn or (config.lacks_goal and not (facts.is_data or facts.are_tokens)):
            drawn, reference, called = _draw_inputs(opened, session, config.seed)
        else:
            seen, held_out = data.inputs.split()
            drawn, reference, called = held_out.batches, session.run_all(held_out.batches), "held out"
        compared = opened.view, names, drawn, count_samples(drawn), reference
        least = FAITHFUL if config.lacks_goal else config.min_fidelity or 0.0
        if config.lacks_goal:
            return SurelyKeepsFidelity(*compared, 1.0 - least, least, called, data.inputs.kind), seen
        return KeepsFidelity(*compared, 1.0 - least, least, called), seen
    labels, most_drop = labelled.labels, config.max_drop or 0.0
    reference = session.run_all(labelled.held_out)
    correct_answers(reference, labels)  # labels that do not fit are refused before any fold
    return KeepsAccuracy(opened.view, names, labelled.held_out, len(labels), reference, most_drop, labels), data.inputs


def _draw_inputs(opened: OpenedModel, session: Session, seed: int) -> tuple[Batches, list[Array], str]:
    """Return new inputs, as many as cost and memory allow, the original's answers, and a name of their kind."""
    inputs = held_out_inputs(opened.view, opened.view, seed=seed + _APART, infos=session.inputs)
    held_out: Batches = []
    answers: list[list[Array]] = []
    kept = 0
    for _, feeds in inputs.batches:
        held_out.append(feeds)
        answers.append(session.run(feeds))
        kept += sum(array.nbytes for array in (*feeds.values(), *answers[-1]))
        if kept > _KEPT_BYTES:
            break
    return held_out, joined_outputs(answers), f"held-out {inputs.kind}"


def smallest_fold(task: FoldTask, request: WidthRequest, data: ChosenInputs) -> FoldedModel:
    """Return the smallest of a series of folds for which the criterion holds, with its accuracy if that is judged.

    It is judged by what would be written, quantised if that is requested. The sparsity is found to 0.016, by
    interpolation between folds. The model is analysed, and what its groups could become is computed, once.
    """
    config, progress = task.config, task.progress
    try:
        criterion, seen = find_criterion(task.opened, data, config)
    except VerificationError as error:
        if config.lacks_goal:
            return _lossless(task, request, f"without a goal a fold is judged by its answers, and {error}")
        raise
    prepared = task.prepared(seen, chooses=request.widths is None)

    def fold(sparsity: float, model: PreparedModel) -> FoldedModel:
        at = _task_at(task, sparsity)
        return fold_model(model, at.request(may_keep_all=True), at.config, progress)

    best: tuple[float, Judgement] | None = None
    bracket = Bracket(0.0, criterion.most, criterion.allowance)
    sparsity = criterion.most if criterion.includes_most else bracket.point
    tried, reached = LEAST, ""
    unfolded: NothingToFoldError | None = None
    while True:
        try:
            folded = fold(sparsity, prepared.trial())
        except BudgetError:
            bracket = bracket.lost_at(sparsity, None)
        except NothingToFoldError as error:  # no channel goes yet, and nothing is lost
            bracket, unfolded = bracket.kept_at(sparsity, criterion.allowance), error
        else:
            written = folded.written(seen, config, progress)
            judgement = criterion.judge(written.view)
            tried, reached = sparsity, judgement.reached
            if judgement.holds:
                best, bracket = (sparsity, judgement), bracket.kept_at(sparsity, judgement.margin)
            else:
                bracket = bracket.lost_at(sparsity, -judgement.margin)
        if bracket.width <= criterion.resolution or bracket.high <= LEAST:
            break
        sparsity = max(bracket.point, LEAST)
    if unfolded is not None and not reached:
        raise unfolded
    if best is None:
        refusal = criterion.refusal(tried, reached or "not known")
        if config.lacks_goal:
            return _lossless(task, request, refusal)
        raise BudgetError(refusal)
    sparsity, judgement = best
    note = f"{judgement.summary} at sparsity {sparsity:.3f}"
    if config.lacks_goal:
        note += f": without a goal, the most up to {MOST_REMOVED:g} that surely keeps {FAITHFUL:.0%}"
    decision = Decision((note,), judgement.accuracy)
    # Its model says at which sparsity it was folded.
    return replace(fold(sparsity, prepared), config=config, decision=decision)


def fold_lossless(task: FoldTask, request: WidthRequest, data: ChosenInputs) -> FoldedModel:
    """Merge exact duplicates and dead channels; a model that has none, nor equal weights, is copied."""
    opened, config = task.opened, task.config
    prepared = task.prepared(data.inputs)
    pairs = [pair for graph in prepared.graphs for pair in zip(graph.groups, graph.lossless, strict=True)]
    widths = [width if may_shrink(group, config.keep) else group.size for group, width in pairs]
    folded = fold_model(prepared, replace(request, widths=widths), config, task.progress)
    if folded.size.parameters < opened.size.parameters:
        return folded
    return replace(folded, view=load(opened.source), size=opened.size, stored=None, decision=Decision((_NOTHING,)))


def _lossless(task: FoldTask, request: WidthRequest, reason: str) -> FoldedModel:
    """Return the model without what changes no answer, and say why nothing else went."""
    task, request = replace(task, method=find_method(EXACT)), replace(request, may_keep=True)
    folded = fold_lossless(task, request, ChosenInputs(None))
    note = f"nothing that changes answers was removed: {reason}; --sparsity says how much shall go"
    return replace(folded, decision=Decision((note,)))


def _task_at(task: FoldTask, sparsity: float) -> FoldTask:
    """Return the task of one fold of the search."""
    return replace(task, config=replace(task.config, sparsity=sparsity, min_fidelity=None, max_drop=None, data=None))
