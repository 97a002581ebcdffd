"""Residual blocks that are dropped before channels are folded.

A number of blocks, or as many as a sparsity takes, go by their influence, least first. By 'auto', branches go that cost
less than channels of the same weight would, see :mod:`onnxfold.folding.blocks.branch_allocation`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from onnxfold.errors import VerificationError
from onnxfold.folding.blocks.branch_allocation import fewest_lost
from onnxfold.folding.blocks.drop_request import TOLERANCE, DropRequest, drop_request
from onnxfold.folding.blocks.droppable import Droppable
from onnxfold.folding.blocks.remove_blocks import caches_read, remove_blocks
from onnxfold.folding.fold_task import FoldTask
from onnxfold.folding.inputs.choose_inputs import ChosenInputs, choose_inputs
from onnxfold.folding.probes.influence import effects, influences
from onnxfold.inputs.tokens.cache_layers import layers_left
from onnxfold.passes.normalize.pipelines import clean_up
from onnxfold.report import DroppedBlock

#: Samples that effects are measured on.
_SAMPLES = 8


@dataclass(frozen=True, eq=False)
class Dropped:
    """A model without some of its blocks, and its inputs."""

    task: FoldTask  # the model, analysed anew, and what is left to do
    #: What it is run on; None where nothing was to be dropped, and it is not known yet.
    inputs: ChosenInputs | None = None
    blocks: tuple[DroppedBlock, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)  # new names of inputs and outputs, empty for those that went
    #: Layers with caches that there were, and which of them, counted from 0, are left; None where no cache went.
    layers_left: tuple[int, list[int]] | None = None


def drop_blocks(task: FoldTask) -> Dropped:
    """Drop the blocks that a request names, in place; most requests name none, and change nothing."""
    opened, config, method, progress = task.opened, task.config, task.method, task.progress
    request = drop_request(opened, config, method)
    if request is None:
        return Dropped(task)
    run_on = task.shared_inputs or choose_inputs(opened, config, method, progress, needed=True)
    inputs, view = run_on.inputs, opened.view
    if inputs is None:
        why = run_on.notes[0] if run_on.notes else "it has no inputs"
        raise VerificationError(f"blocks are chosen by what they do, and the network cannot be run: {why}")
    blocks = [droppable.block for droppable in request.blocks]
    if request.count is None and request.sparsity is None:
        measured = effects(view, blocks, inputs.few_samples(_SAMPLES), inputs.tokens.answers, progress)
        chosen = fewest_lost(task, request.blocks, measured, inputs)
        records = [_record(request.blocks[i], effect=float(measured[i])) for i in chosen]
    else:
        measured = influences(view, blocks, inputs.batches, progress)
        order = np.argsort(measured, kind="stable").tolist()
        chosen = sorted(order[: _count(request, order, opened.size.parameters)])
        records = [_record(request.blocks[i], influence=float(measured[i])) for i in chosen]
    if not chosen:
        return Dropped(task, replace(run_on, notes=(*run_on.notes, *request.notes)))
    caches = caches_read(view)
    without, names = remove_blocks(opened, [request.blocks[i] for i in chosen])
    if method.drops_blocks or config.only_drops:
        clean_up(opened.scopes[0].copies)(without.view)  # no fold of this graph follows
    notes = (*run_on.notes, *request.notes, *_drop_notes(records, request.sparsity, opened.size.parameters))
    moved = replace(run_on, inputs=inputs.renamed(names), notes=notes)
    gone = [name for name, new in names.items() if not new]
    left = layers_left(caches, gone) if any(record.caches for record in records) else None
    return Dropped(replace(task, opened=without), moved, tuple(records), names, left)


def _count(request: DropRequest, order: Sequence[int], parameters: int) -> int:
    """Return how many blocks are dropped, of all in the order in which they go."""
    if request.count is not None:
        return request.count
    removed = np.cumsum([0, *(request.blocks[i].weights for i in order)]) / parameters
    return max(int(np.argmin(np.abs(removed - (request.sparsity or 0.0)))), 1)


def _record(droppable: Droppable, *, influence: float | None = None, effect: float | None = None) -> DroppedBlock:
    names = tuple(branch.name for branch in droppable.block.branches)
    return DroppedBlock(droppable.block.name, names, droppable.weights, influence, effect, len(droppable.caches))


def _drop_notes(records: Sequence[DroppedBlock], sparsity: float | None, parameters: int) -> tuple[str, ...]:
    removed = sum(record.weights for record in records) / parameters
    names = ", ".join(f"'{record.name}'" for record in records)
    more = "" if sparsity is None or abs(removed - sparsity) <= TOLERANCE else f"; blocks go whole, so not {sparsity:g}"
    return (f"{len(records)} residual blocks dropped, {removed:.1%} of the weights, those at {names}{more}",)
