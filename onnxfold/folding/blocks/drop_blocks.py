"""Residual blocks that are dropped before channels are folded.

A number of blocks, or as many as a sparsity takes, go by their influence, least first. By 'auto', branches compete with
narrower widths: they go in the order of what the answers lose without each, per weight. For every number of them, what
they take with them is added to what the widths of the rest are predicted to lose, with the same weights removed; the
number with the lowest sum is taken.

The *influence* of a block (ShortGPT, 2024) is one minus the mean cosine of the stream before it and behind it, over all
tokens of a text, or over all places of pictures.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby

import numpy as np
from onnx import NodeProto

from onnxfold.config import FoldConfig
from onnxfold.errors import BudgetError, ConfigError, NothingToFoldError, VerificationError
from onnxfold.folding.fold_task import FoldTask
from onnxfold.folding.inputs.choose_inputs import ChosenInputs, choose_inputs
from onnxfold.folding.methods import Method
from onnxfold.folding.open_model import OpenedModel, all_groups
from onnxfold.folding.probes.trials import Change, run_trials
from onnxfold.graph.bodies import needed_nodes
from onnxfold.graph.nodes import node_key, read_names
from onnxfold.graph.tensors import Array, Matrix, is_float
from onnxfold.graph.view import GraphView
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.inputs.tokens.answers import TokenAnswers
from onnxfold.inputs.tokens.cache_heads import cache_heads, cache_outputs, layers_left, renumber_caches
from onnxfold.inputs.tokens.interface import Purpose, token_interface
from onnxfold.language.lookups import SUM_AND_NORM
from onnxfold.language.residual_branches import ResidualBlock, ResidualBranch, residual_blocks, residual_branches
from onnxfold.passes.base import Pipeline
from onnxfold.passes.merge.drop_branches import DropBranches, inputs_without
from onnxfold.passes.normalize.pipelines import clean_up
from onnxfold.progress import Progress
from onnxfold.report.records import DroppedBlock
from onnxfold.statistics.activations import Activations, Batches


@dataclass(frozen=True)
class Droppable:
    """Branches that go together."""

    branches: ResidualBlock
    weights: int  # float weights that nothing else reads
    caches: frozenset[str] = frozenset()  # inputs and outputs that go, too


def droppable_blocks(
    view: GraphView, *, may_change_caches: bool, whole: bool
) -> tuple[list[Droppable], list[tuple[str, str]]]:
    """Return the blocks that can be dropped from a graph, in its order, and names of branches that cannot, and why."""
    read = cache_heads(view)
    caches = frozenset((*read, *cache_outputs(view.output_names))) if read else frozenset()
    branches = residual_branches(view)
    stays = {b.join: why for b in branches if (why := _obstacle(view, b, caches, may_change=may_change_caches))}
    blocks = residual_blocks(branches) if whole else [[branch] for branch in branches]
    # Of a block, branches behind each other that may go go together.
    runs = (run for block in blocks for run in groupby(block, key=lambda branch: branch.join in stays))
    parts = [tuple(part) for stay, part in runs if not stay]
    droppable = [Droppable(part, *_along(view, part, caches)) for part in parts]
    return droppable, [(branch.name, stays[branch.join]) for branch in branches if branch.join in stays]


def _obstacle(view: GraphView, branch: ResidualBranch, caches: frozenset[str], *, may_change: bool) -> str:
    """Return why a branch has to stay; empty if it may go."""
    held = _outputs_behind(view, branch) & caches
    if held and not may_change:
        return f"the model's output '{min(held)}' holds its past: it goes only with --allow-cache-change"
    left = needed_nodes(view, set(view.output_names) - held, _inputs_without(view, [branch]))
    still = next((node for node in view.nodes if node_key(node) in left & branch.region), None)
    if still is not None:
        return f"something else reads what '{still.name or node_key(still)}' in it computes"
    for name in _read(view, branch.region) & caches:
        other = next((node for node in view.consumers(name) if node_key(node) in left), None)
        if other is not None:
            return f"'{other.name or node_key(other)}' reads its past '{name}', too"
    return ""


def _along(view: GraphView, branches: Sequence[ResidualBranch], caches: frozenset[str]) -> tuple[int, frozenset[str]]:
    """Return the number of weights, and the caches, that go with some branches."""
    held = frozenset().union(*(_outputs_behind(view, branch) & caches for branch in branches))
    instead = _inputs_without(view, branches)
    left = needed_nodes(view, set(view.output_names) - held, instead)
    read = frozenset().union(*(_read(view, branch.region) & caches for branch in branches))
    keys = ((node, node_key(node)) for node in view.nodes)
    needed = {name for node, key in keys if key in left for name in instead.get(key, read_names(node))}
    lost = [n for n in view.weights if n not in needed and is_float(view.weight_type(n)) and view.consumers(n)]
    return sum(map(view.weight_size, lost)), held | read


def _inputs_without(view: GraphView, branches: Sequence[ResidualBranch]) -> dict[str, list[str]]:
    """Return the inputs of the nodes that add some branches, without these, by their keys."""
    joins = ((branch, view.producer(branch.join)) for branch in branches)
    return {b.join: list(filter(None, inputs_without(node, b))) for b, node in joins if node is not None}


def _read(view: GraphView, region: Iterable[str]) -> set[str]:
    nodes = (node for key in region if (node := view.producer(key)) is not None)
    return {name for node in nodes for name in node.input}


def _outputs_behind(view: GraphView, branch: ResidualBranch) -> set[str]:
    """Return the outputs of the model that depend on a branch by another way than the sum with its stream."""
    outputs, behind = set(view.output_names), set[str]()
    for node in view.nodes:
        key = node_key(node)
        if key in branch.region or (key != branch.join and not behind.isdisjoint(read_names(node))):
            behind.update(filter(None, node.output))
    return behind & outputs


def remove_blocks(opened: OpenedModel, dropped: Sequence[Droppable]) -> tuple[OpenedModel, dict[str, str]]:
    """Drop from the main graph, in place; return the model, and new names of inputs and outputs, empty if they went."""
    view, (main, *bodies) = opened.view, opened.scopes
    caches = frozenset[str]().union(*(block.caches for block in dropped))
    names = _new_names(view, caches) if caches else {}
    branches = tuple(branch for block in dropped for branch in block.branches)
    done = Pipeline((DropBranches(branches, caches, names),))(view)
    if done.modified:
        main = opened.form.open(replace(main, records=[*main.records, *done.records]))
    return replace(opened, scopes=[main, *bodies]), {**dict.fromkeys(caches, ""), **names}


def _new_names(view: GraphView, removed: frozenset[str]) -> dict[str, str]:
    """Return new names for the caches that stay; none if one of them is in use."""
    names = renumber_caches(caches_read(view), removed) | renumber_caches(cache_outputs(view.output_names), removed)
    free = removed | names.keys()
    used = {name for node in view.nodes for name in node.output} | {*view.input_names, *view.weights}
    return names if all(new in free or new not in used for new in names.values()) else {}


def caches_read(view: GraphView) -> list[str]:
    """Return the inputs that hold caches."""
    interface = token_interface(view)
    return [] if interface is None else [cache.name for cache in interface.inputs_for(Purpose.CACHE)]


#: How far the fraction of the weights that blocks hold may be from a sparsity without a note.
TOLERANCE = 0.01


@dataclass(frozen=True)
class DropRequest:
    """The blocks that may be dropped, and how many of them are wanted."""

    blocks: list[Droppable]  # what may go, in the order of the graph
    count: int | None = None  # how many of them are wanted
    sparsity: float | None = None  # the fraction of all weights that is to go with them
    notes: tuple[str, ...] = ()  # what cannot go, and why


def drop_request(opened: OpenedModel, config: FoldConfig, method: Method) -> DropRequest | None:
    """Return the blocks that a request drops; None for most requests. It is checked before anything is run."""
    if config.drop_blocks is None and not method.drops_blocks:
        return None
    searches = config.search_option or config.lacks_goal
    if method.drops_blocks and (searches or config.has_limits or config.ratios or config.channel_ratio):
        raise ConfigError(f"method '{method.name}' drops whole blocks: give a sparsity or drop_blocks as its goal")
    whole = config.drop_blocks != "auto" or method.drops_blocks
    droppable, stay = droppable_blocks(opened.view, may_change_caches=config.allow_cache_change, whole=whole)
    notes: tuple[str, ...] = ()
    if stay:
        notes = (f"{len(stay)} residual branches stay, the first of them at '{stay[0][0]}': {stay[0][1]}",)
    if not droppable:
        why = notes[0] if notes else "no node adds what it computed from a stream to this stream"
        raise NothingToFoldError(f"no residual block can be dropped: {why}")
    if isinstance(config.drop_blocks, int):
        if config.drop_blocks > len(droppable):
            raise BudgetError(f"drop_blocks={config.drop_blocks}: only {len(droppable)} blocks can be dropped")
        return DropRequest(droppable, config.drop_blocks, None, notes)
    if not method.drops_blocks:
        return DropRequest(droppable, notes=notes)
    sparsity = config.sparsity or 0.0
    most = sum(block.weights for block in droppable) / opened.size.parameters
    if most < sparsity - TOLERANCE:
        raise BudgetError(f"sparsity {sparsity:.3g} cannot be reached: all blocks that can be dropped hold {most:.3g}")
    return DropRequest(droppable, None, sparsity, notes)


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
    run_on = task.shared_inputs or choose_inputs(opened, config, method, progress)
    inputs, view = run_on.inputs, opened.view
    if inputs is None:
        raise VerificationError(f"blocks are chosen by what they do, and the network cannot be run: {run_on.notes[0]}")
    blocks = [droppable.branches for droppable in request.blocks]
    if request.count is None and request.sparsity is None:
        measured = effects(view, blocks, inputs.few_batches(_SAMPLES), inputs.tokens.answers, progress)
        chosen = fewest_lost(task, request.blocks, measured, inputs)
        records = [_record(request.blocks[i], effect=float(measured[i])) for i in chosen]
    else:
        measured = influences(view, blocks, inputs.batches, progress)
        order = np.argsort(measured, kind="stable").tolist()
        count = request.count
        if count is None:
            removed = np.cumsum([0, *(request.blocks[i].weights for i in order)]) / opened.size.parameters
            count = max(int(np.argmin(np.abs(removed - (request.sparsity or 0.0)))), 1)
        chosen = sorted(order[:count])
        records = [_record(request.blocks[i], influence=float(measured[i])) for i in chosen]
    if not chosen:
        return Dropped(task, replace(run_on, notes=(*run_on.notes, *request.notes)))
    caches = caches_read(view)
    without, names = remove_blocks(opened, [request.blocks[i] for i in chosen])
    if method.drops_blocks or config.only_removes:
        clean_up(opened.scopes[0].copies)(without.view)  # no fold of this graph follows
    notes = (*run_on.notes, *request.notes, *_drop_notes(records, request.sparsity, opened.size.parameters))
    moved = replace(run_on, inputs=inputs.renamed(names), notes=notes)
    gone = [name for name, new in names.items() if not new]
    left = layers_left(caches, gone) if any(record.caches for record in records) else None
    return Dropped(replace(task, opened=without), moved, tuple(records), names, left)


def _record(droppable: Droppable, *, influence: float | None = None, effect: float | None = None) -> DroppedBlock:
    names = tuple(branch.name for branch in droppable.branches)
    return DroppedBlock(names[0], names, droppable.weights, influence, effect, len(droppable.caches))


def _drop_notes(records: Sequence[DroppedBlock], sparsity: float | None, parameters: int) -> tuple[str, ...]:
    removed = sum(record.weights for record in records) / parameters
    names = ", ".join(f"'{record.name}'" for record in records)
    more = "" if sparsity is None or abs(removed - sparsity) <= TOLERANCE else f"; blocks go whole, so not {sparsity:g}"
    return (f"{len(records)} residual blocks dropped, {removed:.1%} of the weights, those at {names}{more}",)


#: So many numbers of branches in a row may be worse than the best one before the search ends.
_WORSE = 2


def fewest_lost(task: FoldTask, branches: Sequence[Droppable], measured: Matrix, inputs: ModelInputs) -> list[int]:
    """Return which branches are dropped, by their places; none if widths alone lose least."""
    losses = task.prepared(inputs, chooses=True).losses
    curves = {group.name: curve for group, curve in zip(all_groups(task.opened.scopes), losses, strict=True)}
    known = np.flatnonzero(np.isfinite(measured)).tolist()
    order = sorted(known, key=lambda i: float(measured[i] / branches[i].weights))
    best, chosen, worse = np.inf, list[int](), 0
    for count in range(len(order) + 1):
        trial = order[:count]
        lost = _predict_loss(task, [branches[i] for i in trial], curves) + float(measured[trial].sum())
        worse = 0 if lost < best else worse + 1
        if lost < best:
            best, chosen = lost, trial
        if worse > _WORSE:
            break
    return sorted(chosen)


def _predict_loss(task: FoldTask, dropped: Sequence[Droppable], curves: dict[str, Matrix]) -> float:
    """Return the predicted loss of the widths without some branches; infinite if the request is out of reach."""
    trial, _ = remove_blocks(task.opened.copy(), dropped)
    losses = [curves.get(group.name, np.zeros(group.size + 1)) for group in all_groups(trial.scopes)]
    try:
        widths = replace(task, opened=trial).request(may_keep_all=True).choose(losses)
    except BudgetError:
        return np.inf
    except NothingToFoldError:  # what was dropped is enough
        return 0.0
    return float(sum(curve[width] for curve, width in zip(losses, widths, strict=True) if len(curve) > width))


_PICTURES = 4
_TINY = float(np.finfo(np.float64).tiny)


def influences(view: GraphView, blocks: Sequence[ResidualBlock], inputs: Batches, progress: Progress) -> Matrix:
    """Return the influence of every block, shape (n_blocks,)."""
    firsts = {block[0].join: (i, block[0]) for i, block in enumerate(blocks)}
    lasts = {block[-1].join: (i, block[-1]) for i, block in enumerate(blocks)}
    walk, before, result = Activations(view, inputs), dict[int, Sequence[Array]](), np.zeros(len(blocks))
    looked_at = {key: (branch.stream, branch.result) for key, (_, branch) in (firsts | lasts).items()}
    for node in walk.walk(looked_at, partial(progress, "measure blocks")):
        if node_key(node) in firsts:
            i, branch = firsts[node_key(node)]
            before[i] = walk.values[branch.stream]
        if node_key(node) in lasts:
            i, branch = lasts[node_key(node)]
            added = zip(walk.values[branch.stream], walk.values[branch.result], strict=True)
            results = [x + f + _bias(view, node) for x, f in added]
            cosines = []
            for x, y in zip(map(_vectors, before.pop(i)), map(_vectors, results), strict=True):
                norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
                cosines.append((x * y).sum(axis=1) / np.maximum(norms, _TINY))
            result[i] = 1.0 - float(np.concatenate(cosines).mean())
        walk.run(node)
    return result


def effects(
    view: GraphView, blocks: Sequence[ResidualBlock], batches: Batches, tokens: TokenAnswers | None, progress: Progress,
) -> Matrix:  # fmt: skip
    """Return the loss of the answers without each block, shape (n_blocks,)."""
    nodes = {node_key(node): node for node in view.nodes}
    changes = {
        # A branch that adds nothing to its stream, not even the norm's bias.
        branch.join: [Change(i, branch.result, partial(_filled, fill_value=0 - _bias(view, nodes[branch.join])))]
        for i, block in enumerate(blocks)
        for branch in block
    }
    outcomes = run_trials(view, batches, changes, partial(progress, "probe blocks"), tokens=tokens)
    return np.array([outcomes[i].mean_loss if i in outcomes else np.nan for i in range(len(blocks))])


def _filled(_: Iterable[Array], fill_value: Array) -> Callable[[Array], Array]:
    return partial(np.full_like, fill_value=fill_value)


def _bias(view: GraphView, join: NodeProto) -> Array:
    """Return the bias that a norm adds to the branch, 0 for others."""
    place = SUM_AND_NORM[join.op_type][2] if join.op_type in SUM_AND_NORM else len(join.input)
    name = join.input[place] if place < len(join.input) else ""
    return view.weight(name) if view.is_weight(name) else np.zeros((), np.float32)


def _vectors(values: Array) -> Matrix:
    """Return the channels of every token or place, shape (count, channels)."""
    last = np.moveaxis(values, 1, -1) if values.ndim >= _PICTURES else values
    return last.reshape(-1, last.shape[-1]).astype(np.float64)
