"""The way in which channels are folded: once, inside a limit of latency, or in a search for the smallest model."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from onnxfold.budget.devices import MICROCONTROLLER, load_device
from onnxfold.budget.width_request import WidthRequest
from onnxfold.channels import find_groups
from onnxfold.folding.fold_model import FoldedModel
from onnxfold.folding.fold_task import FoldTask, fold_once
from onnxfold.folding.inputs.choose_inputs import ChosenInputs
from onnxfold.folding.one_graph import fold_graph
from onnxfold.folding.open_model import open_scopes
from onnxfold.folding.prepare import Folded, PreparedModel
from onnxfold.folding.probes.measure_latency import add_latency_table
from onnxfold.folding.search.fidelity_search import fold_lossless, smallest_fold, smallest_request
from onnxfold.folding.search.fit_device import DeviceFit, NeedOf
from onnxfold.folding.search.latency_search import fold_within_latency

#: Takes a task, a request and inputs, and returns the folded model.
Fold = Callable[[FoldTask, WidthRequest, ChosenInputs], FoldedModel]
#: What the record of a group of whole groups is called, beside that of the query heads in it.
_WHOLE = "{} (keys and values)"


# Query heads inside the groups that share keys and values are chosen in the same fold as these groups. Where caches may
# change, a head of keys and values is one channel with all query heads that read it. How many of these go is chosen
# first, beside all other widths; it may be none. Then, in the graph without them, caches stay as they are, and all
# other widths are chosen anew at the same goal: query heads, equally many from every group that is left, are channels
# of their own there. So the second choice has what the first one had, and more.


def is_nested(task: FoldTask, request: WidthRequest) -> bool:
    """Whether heads in caches may go, and query heads are channels of their own where these stay."""
    tied, config = _tied(task), task.config
    if request.widths is not None or len(task.opened.scopes) > 1 or not tied or config.ratios or config.keep:
        return False
    return not tied.isdisjoint(group.name for group in find_groups(task.opened.scopes[0].analysed).groups)


def fold_nested(task: FoldTask, request: WidthRequest, data: ChosenInputs) -> FoldedModel:
    """Fold heads in caches first, and to the widths of the request in the model that is left."""
    prepared, opened = task.prepared(data.inputs, chooses=True), task.opened
    done = _fold_caches(task, prepared, request)
    form, (main,) = replace(opened.form, caches=False), opened.scopes
    scopes = open_scopes(main.view, form) if done else [form.open(main)]
    rest = replace(task, opened=replace(opened, scopes=scopes, form=form))
    folded = fold_once(rest, replace(rest.request(may_keep_all=True), may_keep=True), data)
    return replace(folded, graphs=[*done, *folded.graphs])


def _tied(task: FoldTask) -> set[str]:
    """Return the names of the groups that hold heads in caches."""
    return {group.name for group in task.opened.scopes[0].analysis.groups if group.rules.tie is not None}


def _fold_caches(task: FoldTask, prepared: PreparedModel, request: WidthRequest) -> tuple[Folded, ...]:
    """Fold heads in caches and nothing else, in place; return what was done."""
    tied, (graph,) = _tied(task), prepared.graphs
    chosen = request.add_lossless(graph.lossless).choose(prepared.losses)
    widths = [w if group.name in tied else group.size for group, w in zip(graph.groups, chosen, strict=True)]
    if all(width == group.size for group, width in zip(graph.groups, widths, strict=True)):
        return ()
    done = fold_graph(replace(graph, diagnoses=False), widths, task.progress)
    records = tuple(
        replace(record, name=_WHOLE.format(record.name)) for record in done.groups if record.folded_width < record.width
    )
    return (replace(done, groups=records),)


@dataclass(frozen=True, eq=False)
class Way:
    """The conditions of a task on widths, and the function that folds to them."""

    task: FoldTask  # the model, with the table of latencies where widths depend on one
    request: WidthRequest  # the conditions on the widths, which can be met
    fold: Fold
    runs: bool  # whether that runs the network

    @property
    def needs_inputs(self) -> bool:
        """Whether the network is run for anything but the check of the result."""
        return self.runs or self.task.config.quantizes or self.task.config.refines

    def run_fold(self, data: ChosenInputs) -> FoldedModel:
        """Fold, in place."""
        task = replace(self.task, config=data.repeatable_request(self.task.config))
        return self.fold(task, self.request, data if self.runs else ChosenInputs(None))


def find_way(task: FoldTask, *, may_keep: bool, need_of: NeedOf) -> Way:
    """Return the way in which a task is folded, its conditions checked before anything is run but for latency."""
    config = task.config
    task = replace(task, config=add_latency_table(task.opened, config, task.progress))
    if config.search_option or config.lacks_goal:
        return Way(task, smallest_request(task), smallest_fold, runs=True)
    if config.lossless:
        return Way(task, task.request(), fold_lossless, runs=False)
    board = None if config.device is None else load_device(config.device)
    fold: Fold
    if board is not None and board.kind == MICROCONTROLLER and not task.method.drops_blocks:
        fit = DeviceFit(task, board, need_of, may_keep=may_keep)
        request, fold = fit.request(task), fit.fold
    else:
        request = replace(task.request(may_keep_all=may_keep), may_keep=may_keep)
        fold = fold_nested if is_nested(task, request) else fold_once
        if config.max_latency is not None and config.latency_table is None and config.device is None:
            fold = fold_within_latency
    runs = request.widths is None or (task.method.needs_inputs and not request.keeps_all)
    return Way(task, request, fold, runs)
