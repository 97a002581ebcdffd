"""Choice of how many branches are dropped, where that competes with narrower widths.

Branches go in the order of what the answers lose without each, per weight. For every number of them, what they take
with them is added to what the widths of the rest are predicted to lose, with the same weights removed; the number with
the lowest sum is taken.
"""

from collections.abc import Sequence

import numpy as np

from onnxfold.config import FoldConfig
from onnxfold.errors import BudgetError, NothingToFoldError
from onnxfold.folding.droppable import Droppable
from onnxfold.folding.fold_model import ModelCandidates, losses_of, model_candidates, request_widths
from onnxfold.folding.methods import Method
from onnxfold.folding.open_model import OpenedModel
from onnxfold.folding.prepare import prepare
from onnxfold.folding.without_blocks import Ties, without_blocks
from onnxfold.graph.tensors import Matrix
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.progress import Progress

#: So many numbers of branches in a row may be worse than the best one before the search ends.
_WORSE = 2


def fewest_lost(
    opened: OpenedModel,
    found: Sequence[Droppable],
    measured: Matrix,
    inputs: ModelInputs,
    config: FoldConfig,
    method: Method,
    ties: Ties,
    progress: Progress,
) -> list[int]:
    """Return which branches are dropped, by their places; none if widths alone lose least.

    Parameters
    ----------
    opened : OpenedModel
        The model; it stays as it is.
    found : sequence of Droppable
        What can be dropped.
    measured : ndarray of shape (n,)
        What the answers lose without each, in the unit of error curves.
    inputs : ModelInputs
        What the main graph is run on.
    config : FoldConfig
        The request.
    method : Method
        The method.
    ties : callable
        As of :func:`onnxfold.folding.open_model.open_model`.
    progress : callable
        Called for every step.
    """
    candidates = model_candidates(prepare(opened, method, inputs, config.seed), progress)
    curves = _by_name(opened, candidates)
    order = sorted(
        (i for i in range(len(found)) if np.isfinite(measured[i])), key=lambda i: measured[i] / found[i].weights
    )
    best, chosen, worse = np.inf, list[int](), 0
    for count in range(len(order) + 1):
        trial = order[:count]
        lost = _predicted(opened, [found[i] for i in trial], curves, config, method, ties)
        lost += float(measured[trial].sum())
        worse = 0 if lost < best else worse + 1
        if lost < best:
            best, chosen = lost, trial
        if worse > _WORSE:
            break
    return sorted(chosen)


def _predicted(
    opened: OpenedModel,
    dropped: Sequence[Droppable],
    curves: dict[str, Matrix],
    config: FoldConfig,
    method: Method,
    ties: Ties,
) -> float:
    """Return what the widths are predicted to lose without some branches; infinite if the request is out of reach."""
    trial = opened.copy()
    if dropped:
        trial, _ = without_blocks(trial, dropped, ties)
    groups = [group for _, found in trial.graphs for group in found]
    losses = [curves.get(group.name, np.zeros(group.size + 1)) for group in groups]
    try:
        request = request_widths(trial, config, method, may_keep_all=True)
        widths = request.widths if request.widths is not None else request.choose(losses)
    except BudgetError:
        return np.inf
    except NothingToFoldError:  # what was dropped is enough
        return 0.0
    return float(sum(curve[width] for curve, width in zip(losses, widths, strict=True) if len(curve) > width))


def _by_name(opened: OpenedModel, candidates: ModelCandidates) -> dict[str, Matrix]:
    groups = [group for _, found in opened.graphs for group in found]
    return {group.name: curve for group, curve in zip(groups, losses_of(candidates), strict=True)}
