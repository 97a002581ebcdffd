"""Query heads inside the groups that share keys and values, chosen in the same fold as these groups.

Where caches may change, a head of keys and values is one channel with all query heads that read it. How many of these
go is chosen first, beside all other widths; it may be none. Then, in the graph without them, caches stay as they are,
and all other widths are chosen anew at the same goal: query heads, equally many from every group that is left, are
channels of their own there. So the second choice has what the first one had, and more.
"""

from dataclasses import dataclass, replace

from onnxfold.budget.width_request import WidthRequest
from onnxfold.channels import find_groups
from onnxfold.config import FoldConfig
from onnxfold.folding.fold_model import FoldedModel, ModelCandidates, fold_model, losses_of, model_candidates
from onnxfold.folding.fold_task import FoldTask
from onnxfold.folding.inputs.choose_inputs import ChosenInputs
from onnxfold.folding.one_graph import Folded, fold_graph
from onnxfold.folding.open_model import OpenedModel
from onnxfold.folding.prepare import PreparedModel
from onnxfold.folding.scopes import no_ties, open_scopes
from onnxfold.progress import Progress

#: What the record of a group of whole groups is called, beside that of the query heads in it.
_WHOLE = "{} (keys and values)"


@dataclass(frozen=True, eq=False)
class _Cut:
    """A model whose caches are cut, if at all: opened anew, and what was done."""

    opened: OpenedModel
    done: tuple[Folded, ...] = ()


def fold_nested(task: FoldTask, request: WidthRequest, data: ChosenInputs) -> FoldedModel:
    """Fold to the widths of a request; heads in caches first where that frees query heads."""
    prepared = task.prepared(data.inputs)
    candidates = model_candidates(prepared, task.progress) if request.widths is None else None
    widths = None if candidates is None else _first_widths(prepared, request, candidates, task.config)
    if widths is None or candidates is None:
        return fold_model(prepared, request, candidates, task.config, task.progress)
    cut = _cut(prepared, widths, candidates, task.progress)
    rest = replace(task, opened=cut.opened)
    again, new_request = rest.prepared(data.inputs), replace(rest.request(may_keep_all=True), may_keep=True)
    new_candidates = model_candidates(again, task.progress) if new_request.widths is None else None
    folded = fold_model(again, new_request, new_candidates, task.config, task.progress)
    return replace(folded, graphs=[*cut.done, *folded.graphs])


def _first_widths(
    prepared: PreparedModel, request: WidthRequest, candidates: ModelCandidates, config: FoldConfig
) -> list[int] | None:
    """Return the widths with which heads in caches go and nothing else does; None where query heads are alone."""
    groups = prepared.graphs[0].groups
    tied = {group.name for group in groups if group.tie is not None}
    if len(prepared.graphs) > 1 or not tied or config.ratios or config.keep:
        return None
    if tied.isdisjoint(group.name for group in find_groups(prepared.opened.view).groups):
        return None
    chosen = request.add_lossless(prepared.graphs[0].lossless).choose(losses_of(candidates))
    return [width if group.name in tied else group.size for group, width in zip(groups, chosen, strict=True)]


def _cut(prepared: PreparedModel, widths: list[int], candidates: ModelCandidates, progress: Progress) -> _Cut:
    """Fold heads in caches, in place, and open the graph anew with caches that stay."""
    opened, (main,) = prepared.opened, prepared.opened.scopes
    form = replace(opened.form, ties=no_ties)
    if all(width == group.size for group, width in zip(prepared.graphs[0].groups, widths, strict=True)):
        return _Cut(replace(opened, scopes=[replace(main, analysis=form.analyse(main.view))], form=form))
    graph = replace(prepared.graphs[0], diagnoses=False)
    done = fold_graph(graph, widths, candidates[0], progress)
    records = tuple(
        replace(record, name=_WHOLE.format(record.name)) for record in done.groups if record.folded_width < record.width
    )
    scopes = open_scopes(main.view, form)
    return _Cut(replace(opened, scopes=scopes, form=form), (replace(done, groups=records),))
