"""Seams in the graph that is folded: those whose channels become fewer, written once widths are chosen."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace

from onnxfold.channels import FoldGroup
from onnxfold.channels.declarations import Axis
from onnxfold.folding.prepare import Prepared
from onnxfold.passes.merge.dead_to_duplicates import DeadToDuplicates


@dataclass(frozen=True, eq=False)
class UsedSeams:
    """A graph with the seams that its widths use, and what its groups were among all seams."""

    prepared: Prepared
    numbers: list[int]  # per group, its number in the analysis with all seams


def insert_used_seams(prepared: Prepared, widths: Sequence[int]) -> UsedSeams:
    """Write the seams whose groups are narrower into a graph, in place."""
    scope, groups = prepared.scope, prepared.groups
    if scope.trial is None:
        return UsedSeams(prepared, list(range(len(groups))))
    narrower = {i for i, (group, width) in enumerate(zip(groups, widths, strict=True)) if width < group.size}
    # Names that a seam gives to activations depend on the other seams.
    stable = {*scope.trial.weights, *(name for node in scope.view.nodes for name in node.output)}
    places = {key: i for i, group in enumerate(groups) for key in _places(group, stable)}
    scope = scope.with_seams(frozenset(name for i in narrower for name in groups[i].seam.spare))
    kept = [
        (replace(group, name=groups[number].name), number)
        for group in scope.analysis.groups
        for number in [next((places[key] for key in _places(group, stable) if key in places), None)]
        if number is not None
    ]
    numbers = [number for _, number in kept]
    assert narrower <= set(numbers), "channels that become fewer are a group without the other seams, too"
    scope = replace(scope, analysis=replace(scope.analysis, groups=[group for group, _ in kept]))
    if prepared.method.partitioner.averages and not prepared.sources:
        DeadToDuplicates(tuple(scope.analysis.groups))(scope.view)
    chosen = replace(
        prepared,
        scope=scope,
        duplicates=tuple(prepared.duplicates[i] for i in numbers),
        sources=tuple(prepared.sources[i] for i in numbers) if prepared.sources else (),
        candidates=None if prepared.candidates is None else [prepared.candidates[i] for i in numbers],
    )
    return UsedSeams(chosen, numbers)


def _places(group: FoldGroup, names: Container[str]) -> Iterator[tuple[Axis, bytes]]:
    """Yield where the channels of a group are, on weights first, and on those with some names only."""
    everywhere = (*((member.axis, member.positions) for member in group.members), *group.tensors.items())
    return ((axis, positions.tobytes()) for axis, positions in everywhere if axis.tensor in names)
