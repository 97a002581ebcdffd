"""The way in which channels are folded: once, inside a limit of latency, or in a search for the smallest model."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from onnxfold.budget.devices import MICROCONTROLLER, load_device
from onnxfold.budget.width_request import WidthRequest
from onnxfold.folding.after.fold_lossless import fold_lossless
from onnxfold.folding.fold_model import FoldedModel
from onnxfold.folding.fold_task import FoldTask, fold_once
from onnxfold.folding.inputs.choose_inputs import ChosenInputs
from onnxfold.folding.nested_heads import fold_nested, is_nested
from onnxfold.folding.probes.measure_latency import add_latency_table
from onnxfold.folding.search.fidelity_search import smallest_fold, smallest_request
from onnxfold.folding.search.fit_device import DeviceFit, NeedOf
from onnxfold.folding.search.latency_search import fold_within_latency


@dataclass(frozen=True, eq=False)
class Way:
    """The conditions of a task on widths, and the function that folds to them."""

    task: FoldTask  # the model, with the table of latencies where widths depend on one
    request: WidthRequest  # the conditions on the widths, which can be met
    #: Takes a task, a request and inputs, and returns the folded model.
    fold: Callable[[FoldTask, WidthRequest, ChosenInputs], FoldedModel]
    runs: bool  # whether that runs the network

    @property
    def needs_inputs(self) -> bool:
        """Whether the network is run for anything but the check of the result."""
        return self.runs or self.task.config.quantizes or self.task.config.tune_norms

    def run_fold(self, data: ChosenInputs) -> FoldedModel:
        """Fold, in place."""
        task = replace(self.task, config=data.repeatable_request(self.task.config))
        return self.fold(task, self.request, data if self.runs else ChosenInputs(None))


def find_way(task: FoldTask, *, may_keep: bool, need_of: NeedOf | None = None) -> Way:
    """Return the way in which a task is folded, its conditions checked before anything is run but for latency."""
    config = task.config
    task = replace(task, config=add_latency_table(task.opened, config, task.progress))
    if config.search_option:
        return Way(task, smallest_request(task), smallest_fold, runs=True)
    if config.lossless:
        return Way(task, task.request(), fold_lossless, runs=False)
    if need_of is not None and config.device is not None:
        board = load_device(config.device)
        if board.kind == MICROCONTROLLER and not task.method.drops_blocks:
            fit = DeviceFit(task, board, need_of, may_keep=may_keep)
            request = fit.request(task)
            runs = request.widths is None or (task.method.needs_inputs and not request.keeps_all)
            return Way(task, request, fit.fold, runs)
    request = replace(task.request(may_keep_all=may_keep), may_keep=may_keep)
    measures = config.max_latency is not None and config.latency_table is None and config.device is None
    runs = request.widths is None or (task.method.needs_inputs and not request.keeps_all)
    fold = fold_nested if is_nested(task, request) else fold_once
    return Way(task, request, fold_within_latency if measures else fold, runs)
