"""Choice of how many branches are dropped, where that competes with narrower widths.

Branches go in the order of what the answers lose without each, per weight. For every number of them, what they take
with them is added to what the widths of the rest are predicted to lose, with the same weights removed; the number with
the lowest sum is taken.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from onnxfold.errors import BudgetError, NothingToFoldError
from onnxfold.folding.blocks.droppable import Droppable
from onnxfold.folding.blocks.remove_blocks import remove_blocks
from onnxfold.folding.fold_task import FoldTask
from onnxfold.folding.open_model import OpenedModel
from onnxfold.graph.tensors import Matrix
from onnxfold.inputs.model_inputs import ModelInputs

#: So many numbers of branches in a row may be worse than the best one before the search ends.
_WORSE = 2


def fewest_lost(task: FoldTask, branches: Sequence[Droppable], measured: Matrix, inputs: ModelInputs) -> list[int]:
    """Return which branches are dropped, by their places; none if widths alone lose least."""
    curves = _curves_by_name(task.opened, task.prepared(inputs, chooses=True).losses)
    order = sorted(
        (i for i in range(len(branches)) if np.isfinite(measured[i])), key=lambda i: measured[i] / branches[i].weights
    )
    best, chosen, worse = np.inf, list[int](), 0
    for count in range(len(order) + 1):
        trial = order[:count]
        lost = _predict_loss(task, [branches[i] for i in trial], curves)
        lost += float(measured[trial].sum())
        worse = 0 if lost < best else worse + 1
        if lost < best:
            best, chosen = lost, trial
        if worse > _WORSE:
            break
    return sorted(chosen)


def _predict_loss(task: FoldTask, dropped: Sequence[Droppable], curves: dict[str, Matrix]) -> float:
    """Return the predicted loss of the widths without some branches; infinite if the request is out of reach."""
    trial, _ = remove_blocks(task.opened.copy(), dropped)
    groups = [group for _, graph_groups in trial.graphs for group in graph_groups]
    losses = [curves.get(group.name, np.zeros(group.size + 1)) for group in groups]
    try:
        request = replace(task, opened=trial).request(may_keep_all=True)
        widths = request.widths if request.widths is not None else request.choose(losses)
    except BudgetError:
        return np.inf
    except NothingToFoldError:  # what was dropped is enough
        return 0.0
    return float(sum(curve[width] for curve, width in zip(losses, widths, strict=True) if len(curve) > width))


def _curves_by_name(opened: OpenedModel, losses: Sequence[Matrix]) -> dict[str, Matrix]:
    groups = [group for _, graph_groups in opened.graphs for group in graph_groups]
    return {group.name: curve for group, curve in zip(groups, losses, strict=True)}
