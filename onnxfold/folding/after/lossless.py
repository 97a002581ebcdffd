"""The size of a model as it lies in its file, and the weights that it could do without at no loss."""

import os
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike

from onnxfold.budget.costs.macs import model_size
from onnxfold.budget.costs.weights import WeightCost, count_parameters
from onnxfold.channels import FoldGroup
from onnxfold.cluster.duplicates import find_duplicates, lossless_width
from onnxfold.cluster.partition import Labels
from onnxfold.folding.scopes import Scope, copy_scopes
from onnxfold.graph.files.load import ModelLike
from onnxfold.graph.files.model_files import lazy_files
from onnxfold.graph.files.save import file_bytes
from onnxfold.graph.view import GraphView
from onnxfold.inputs.tokens.token_plan import size_of
from onnxfold.machine.threads import one_blas_thread
from onnxfold.passes.merge.dead_to_duplicates import DeadToDuplicates
from onnxfold.passes.normalize.pipelines import NORMALIZE
from onnxfold.passes.normalize.unneeded import ShareEqualWeights
from onnxfold.report import ModelSize


def bytes_of(model: ModelLike, view: GraphView) -> int:
    """Return the bytes of a model's files; of a ModelProto, those of the file that it would be."""
    if not isinstance(model, str | PathLike):
        return file_bytes(view)
    files = {os.path.realpath(path) for path in (model, *lazy_files(view))}
    return sum(os.path.getsize(path) for path in files if os.path.isfile(path))  # who reads a missing one says so


def stored_size(view: GraphView, size_bytes: int) -> ModelSize:
    """Return the size of a model before any form of it adds a product, or moves weights into others.

    Lengths that the model computes from constants are those of the normal form, which a copy is brought into.
    """
    size = replace(model_size(view), size_bytes=size_bytes)
    if size.macs is None:
        normal = view.copy()
        NORMALIZE(normal)
        counted = size_of(normal)
        size = replace(size, macs=counted.macs, macs_per=counted.macs_per)
    return size


def share_equal_weights(view: GraphView) -> int:
    """Store equal weights of a graph once; return how many numbers that saves."""
    before = count_parameters(view)
    return before - count_parameters(view) if ShareEqualWeights()(view).modified else 0


def may_shrink(group: FoldGroup, keep: Sequence[str] = ()) -> bool:
    """Whether channels of a group may go where that loses nothing: those of ties and streams, and kept ones, stay."""
    return group.rules.tie is None and not group.norms and not any(group.matches(glob) for glob in keep)


def exact_duplicates(view: GraphView, groups: list[FoldGroup], *, averages: bool = True, seed: int = 0) -> list[Labels]:
    """Return the classes of exact duplicates; where channels are averaged, dead ones become some of them, in place."""
    with one_blas_thread():
        if averages:
            DeadToDuplicates(tuple(groups))(view)
        return find_duplicates(view, groups, seed=seed)


def spare_weights(scopes: Sequence[Scope]) -> int:
    """Return how many weights belong to channels that are dead, or exact duplicates of others."""
    copies = copy_scopes(list(scopes))
    graphs = [(scope.analysed, scope.analysis.groups) for scope in copies]
    widths = []
    for view, groups in graphs:
        classes = exact_duplicates(view, groups)
        least = [lossless_width(c, g.blocks) for c, g in zip(classes, groups, strict=True)]
        widths += [
            width if may_shrink(group) and not group.seam.spare else group.size
            for width, group in zip(least, groups, strict=True)
        ]
    cost = WeightCost(graphs)
    return int(cost([group.size for _, groups in graphs for group in groups]) - cost(widths))
