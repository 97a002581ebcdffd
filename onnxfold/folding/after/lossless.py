"""The weights that a model could do without at no loss: equal ones, exact duplicates of channels, and dead channels."""

from collections.abc import Sequence

from onnxfold.budget.costs.weights import WeightCost, count_parameters
from onnxfold.channels import FoldGroup
from onnxfold.cluster.duplicates import find_duplicates, lossless_width
from onnxfold.folding.scopes import Scope, copy_scopes
from onnxfold.graph.view import GraphView
from onnxfold.machine.threads import one_blas_thread
from onnxfold.passes.merge.dead_to_duplicates import DeadToDuplicates
from onnxfold.passes.normalize.shared_weights import ShareEqualWeights


def share_equal_weights(view: GraphView) -> int:
    """Store equal weights of a graph once; return how many numbers that saves."""
    before = count_parameters(view)
    return before - count_parameters(view) if ShareEqualWeights()(view).modified else 0


def may_shrink(group: FoldGroup, keep: Sequence[str] = ()) -> bool:
    """Whether channels of a group may go where that loses nothing: those of ties and streams, and kept ones, stay."""
    return group.tie is None and not group.norms and not any(group.matches(glob) for glob in keep)


def spare_weights(scopes: Sequence[Scope]) -> int:
    """Return how many weights belong to channels that are dead, or exact duplicates of others."""
    copies = copy_scopes(list(scopes))
    graphs = [(scope.analysed, scope.analysis.groups) for scope in copies]
    widths = []
    for view, groups in graphs:
        DeadToDuplicates(tuple(groups))(view)
        with one_blas_thread():
            classes = find_duplicates(view, groups)
        least = [lossless_width(c, g.blocks) for c, g in zip(classes, groups, strict=True)]
        widths += [
            width if may_shrink(group) and not group.seam.spare else group.size
            for width, group in zip(least, groups, strict=True)
        ]
    cost = WeightCost(graphs)
    return int(cost([group.size for _, groups in graphs for group in groups]) - cost(widths))
