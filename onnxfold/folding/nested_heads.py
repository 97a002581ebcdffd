"""Query heads inside the groups that share keys and values, chosen in the same fold as these groups.

Where caches may change, a head of keys and values is one channel with all query heads that read it. How many of these
go is chosen first, beside all other widths; it may be none. Then, in the graph without them, caches stay as they are,
and all other widths are chosen anew at the same goal: query heads, equally many from every group that is left, are
channels of their own there. So the second choice has what the first one had, and more.
"""

from dataclasses import replace

from onnxfold.budget.width_request import WidthRequest
from onnxfold.channels import find_groups
from onnxfold.folding.fold_model import FoldedModel
from onnxfold.folding.fold_task import FoldTask, fold_once
from onnxfold.folding.inputs.choose_inputs import ChosenInputs
from onnxfold.folding.one_graph import fold_graph
from onnxfold.folding.prepare import Folded, PreparedModel
from onnxfold.folding.scopes import no_ties, open_scopes

#: What the record of a group of whole groups is called, beside that of the query heads in it.
_WHOLE = "{} (keys and values)"


def is_nested(task: FoldTask, request: WidthRequest) -> bool:
    """Whether heads in caches may go, and query heads are channels of their own where these stay."""
    tied, config = _tied(task), task.config
    if request.widths is not None or len(task.opened.scopes) > 1 or not tied or config.ratios or config.keep:
        return False
    return not tied.isdisjoint(group.name for group in find_groups(task.opened.scopes[0].analysed).groups)


def fold_nested(task: FoldTask, request: WidthRequest, data: ChosenInputs) -> FoldedModel:
    """Fold heads in caches first, and to the widths of the request in the model that is left."""
    prepared, opened = task.prepared(data.inputs, chooses=True), task.opened
    done = _fold_caches(prepared, _cache_widths(task, prepared, request), task)
    form, (main,) = replace(opened.form, ties=no_ties), opened.scopes
    scopes = open_scopes(main.view, form) if done else [form.open(main)]
    rest = replace(task, opened=replace(opened, scopes=scopes, form=form), done=done)
    return fold_once(rest, replace(rest.request(may_keep_all=True), may_keep=True), data)


def _tied(task: FoldTask) -> set[str]:
    """Return the names of the groups that hold heads in caches."""
    return {group.name for group in task.opened.scopes[0].analysis.groups if group.tie is not None}


def _cache_widths(task: FoldTask, prepared: PreparedModel, request: WidthRequest) -> list[int]:
    """Return the widths with which heads in caches go and nothing else does."""
    tied, (graph,) = _tied(task), prepared.graphs
    chosen = request.add_lossless(graph.lossless).choose(prepared.losses)
    return [width if group.name in tied else group.size for group, width in zip(graph.groups, chosen, strict=True)]


def _fold_caches(prepared: PreparedModel, widths: list[int], task: FoldTask) -> tuple[Folded, ...]:
    """Fold heads in caches, in place; return what was done."""
    (graph,) = prepared.graphs
    if all(width == group.size for group, width in zip(graph.groups, widths, strict=True)):
        return ()
    done = fold_graph(replace(graph, diagnoses=False), widths, task.progress)
    records = tuple(
        replace(record, name=_WHOLE.format(record.name)) for record in done.groups if record.folded_width < record.width
    )
    return (replace(done, groups=records),)
