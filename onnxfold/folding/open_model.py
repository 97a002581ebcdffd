"""Load a model, check it, and analyse its graphs: the part of a fold before the request matters.

A scope is one graph of a model: the main graph, or the body of an If, Loop or Scan node.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from os import PathLike

from onnxfold.budget.costs.running import model_size
from onnxfold.budget.costs.weights import FREE_DIMENSION, count_parameters
from onnxfold.channels import ChannelAnalysis, FoldGroup, find_groups
from onnxfold.channels.group import lists_by_key, members_by_tensor
from onnxfold.channels.walker import node_name
from onnxfold.cluster.partition import Labels
from onnxfold.errors import EndlessRunError, MemoryLimitError, NonFiniteError, NothingToFoldError
from onnxfold.graph.bodies import Body, open_bodies
from onnxfold.graph.files.load import ModelLike, load
from onnxfold.graph.files.model_files import lazy_files
from onnxfold.graph.files.save import file_bytes, weight_bytes
from onnxfold.graph.finite import flaw, require_no_nan
from onnxfold.graph.nodes import QDQ, is_quantized, node_key
from onnxfold.graph.run.runtime import require_known_operators
from onnxfold.graph.run.session import Session
from onnxfold.graph.spill import SpillFile
from onnxfold.graph.tensors import LazyTensor, Shape, is_float
from onnxfold.graph.view import GraphView
from onnxfold.inputs.images.image_form import unscaled_pixels
from onnxfold.inputs.input_plan import image_sizes, needed_batch, needed_sizes
from onnxfold.inputs.tokens.cache_heads import cache_ties
from onnxfold.inputs.tokens.token_plan import size_of
from onnxfold.machine import memory
from onnxfold.passes.base import Pass, Pipeline
from onnxfold.passes.normalize.pipelines import NORMALIZE
from onnxfold.passes.normalize.unneeded import ShareEqualWeights
from onnxfold.passes.seams.tables import FactorQueries, FactorTables, SplitLookups, SplitProjections
from onnxfold.passes.seams.tied_tables import FactorTies, SplitTables, readers_of
from onnxfold.progress import Progress
from onnxfold.quantize.integers import StoredNumbers, dequantize
from onnxfold.report import ModelSize, PassRecord, Refusal, RefusalKind

#: More than any network has that somebody trained; each takes milliseconds.
_MOST_BODIES = 1_000


@dataclass(eq=False)
class Scope:
    """One graph, normalised and analysed."""

    view: GraphView
    analysis: ChannelAnalysis  # its groups and refusals
    records: list[PassRecord]
    copies: Mapping[str, str]  # the initializers that normalisation copied, with their originals
    body: Body | None = None  # where the graph goes back to; None for the main graph
    #: A copy with all seams of the form, which the analysis is of; None where the form adds none.
    trial: GraphView | None = None
    parts: Mapping[str, str] = field(default_factory=dict)  # weights of the copy that are parts of others, with these
    form: "GraphForm | None" = None  # the form that it is in, with its seams

    @property
    def analysed(self) -> GraphView:
        """The graph that the analysis is of."""
        return self.view if self.trial is None else self.trial

    def with_seams(self, only: frozenset[str]) -> "Scope":
        """Write the seams with some matrices, in place; return the graph, analysed anew."""
        assert self.form is not None
        done = self.form.seams(only)(self.view)
        return replace(self, analysis=self.form.analyse(self.view), trial=None, records=[*self.records, *done.records])


@dataclass(frozen=True)
class GraphForm:
    """The form that a main graph is brought into, and analysed in."""

    caches: bool = False  # whether heads in caches may go, and whether they may in each layer by itself
    per_layer: bool = False
    tables: bool = False  # whether tables of words, and residual streams, are channels that may be rotated
    streams: bool = False
    queries: bool = False  # whether queries of attention with a cache may become products of two narrower weights
    #: The ids of rare words in classes, the rarest last, whose rows of tables may be narrower than others.
    rare: tuple[range, ...] = ()

    def seams(self, only: frozenset[str] | None = None) -> Pipeline:
        """Return the passes that write products between weights: all, or those by some matrices."""
        steps: list[Pass] = [FactorTies(only=only)] if self.streams else []
        if self.tables:
            ids = [(bounds.start, bounds.stop) for bounds in reversed(self.rare)]
            # Parts that are only looked up in get their bases like whole tables.
            steps += [*(SplitLookups(*bounds, only=only) for bounds in ids), FactorTables(only=only)]
            steps += [SplitTables(*bounds, only=only) for bounds in ids]
        return Pipeline((*steps, *([SplitProjections(only=only), FactorQueries(only=only)] if self.queries else [])))

    def open(self, scope: Scope) -> Scope:
        """Return a normalised graph, analysed with all seams of the form."""
        trial = scope.view.copy()
        done = self.seams()(trial)
        if not done.modified:
            return replace(scope, analysis=self.analyse(scope.view), trial=None, form=self)
        return replace(scope, analysis=self.analyse(trial), trial=trial, parts=done.copies, form=self)

    def analyse(self, view: GraphView) -> ChannelAnalysis:
        """Return the groups and refusals of a graph in this form."""
        ties = cache_ties(view, per_layer=self.per_layer) if self.caches else ()
        return find_groups(view, ties, streams=self.streams)


#: All inputs and outputs stay as they are, and so does the basis of all channels; that of bodies, too.
PLAIN = GraphForm()


def open_scopes(
    view: GraphView, form: GraphForm = PLAIN, *, body: Body | None = None, numbers: Iterator[int] | None = None
) -> list[Scope]:
    """Normalise and analyse a graph and every body inside it; outer graphs come first."""
    is_whole = numbers is None
    numbers = iter(range(_MOST_BODIES)) if numbers is None else numbers
    before = dict(view.weights)
    normal = NORMALIZE(view)
    if body is not None:
        body.return_weights({name: weight for name, weight in before.items() if name not in view.weights})
    # Bodies take the weights that only they read before the graph around them is analysed.
    inner = [
        scope
        for opened in open_bodies(view, numbers)
        for scope in open_scopes(opened.view, body=opened, numbers=numbers)
    ]
    if is_whole and len(inner) == _MOST_BODIES:
        view.notes.append(f"only the first {_MOST_BODIES:,} bodies of If, Loop and Scan are looked into: others stay")
    main = Scope(view, ChannelAnalysis([], []), list(normal.records), normal.copies, body)
    return [form.open(main), *inner]


def copy_scopes(scopes: list[Scope]) -> list[Scope]:
    """Return the scopes of one model with graphs that are edited without an effect on these."""
    copies = {id(scope.view): scope.view.copy() for scope in scopes}
    copied = []
    for scope in scopes:
        body = None if scope.body is None else scope.body.rebind(copies[id(scope.view)], copies[id(scope.body.parent)])
        trial = None if scope.trial is None else scope.trial.copy()
        copied.append(replace(scope, view=copies[id(scope.view)], body=body, trial=trial))
    return copied


def all_groups(scopes: list[Scope]) -> list[FoldGroup]:
    """Return the groups of all scopes, outer graphs first."""
    return [group for scope in scopes for group in scope.analysis.groups]


def all_refusals(scopes: list[Scope]) -> list[Refusal]:
    """Return the refusals of all scopes, those that hold back most weights first."""
    return sorted((r for scope in scopes for r in scope.analysis.refusals), key=lambda r: (-r.weights, r.node, r.axis))


def refusals_of_file(scopes: list[Scope]) -> list[Refusal]:
    """Return the refusals of all scopes for the weights that the file has: those of parts are of what was split."""
    names: dict[str, str] = {}  # nodes that seams add, with those of the file; '' for none
    weights = {part: whole for scope in scopes for part, whole in scope.parts.items()}
    for view, scope in ((scope.trial, scope) for scope in scopes if scope.trial is not None):
        for part, whole in scope.parts.items():
            owners = {n.op_type: node_name(scope.view, node_key(n)) for _, n in readers_of(scope.view, whole)}
            names |= {node_name(view, node_key(n)): owners.get(n.op_type, "") for _, n in readers_of(view, part)}
        narrower = {m.axis.tensor for group in scope.analysis.groups if group.rotates for m in group.members}
        added = {*scope.parts, *(name for group in scope.analysis.groups for name in group.seam.spare)} & narrower
        names |= {node_name(view, node_key(n)): "" for name in added for n in view.consumers(name)}
    named = [r.rename(names.get(r.node, r.node), weights.get(r.weight, r.weight)) for r in all_refusals(scopes)]
    alike = lists_by_key(((r.node, r.axis), r) for r in named if r.node).values()
    merged = [replace(first, weights=sum(r.weights for r in (first, *others))) for first, *others in alike]
    return sorted(merged, key=lambda r: -r.weights)


def integer_reason(scopes: Iterable[Scope]) -> str:
    """Return the reason why a quantised model folds no further, '' for others."""
    nodes = ((scope.view, node) for scope in scopes for node in scope.view.nodes if is_quantized(node))
    # A range of activations holds no weight.
    done = next((node for view, node in nodes if node.op_type not in QDQ or view.is_weight(node.input[0])), None)
    if done is None:
        return ""
    return (
        f"the model is quantised, see {done.op_type} '{done.name or node_key(done)}', and no other channels can be "
        "merged: fold the float32 model, with --dtype int8 to quantise it again"
    )


def require_groups(scopes: list[Scope]) -> None:
    """Raise NothingToFoldError, with the reason of the largest weight that stays, where there is no fold group."""
    if all_groups(scopes):
        return
    integers = integer_reason(scopes)
    if integers:
        raise NothingToFoldError(f"nothing to fold: {integers}")
    refusals = all_refusals(scopes)
    if not refusals:
        raise NothingToFoldError("nothing to fold: the model has no Conv, Gemm or MatMul weights that produce channels")
    # That the model's own inputs and outputs stay is true of every model.
    worst = next((r for r in refusals if r.kind is not RefusalKind.INTERFACE), refusals[0])
    raise NothingToFoldError(
        f"nothing to fold: no channel of this model can be merged; a large weight that stays is '{worst.node}' "
        f"({worst.axis}): {worst.reason}"
    )


def require_finite_channels(scope: Scope, *, everywhere: bool) -> None:
    """Refuse infinite weights in fold groups. Elsewhere they are legal: masks of attention are infinite."""
    view, groups = scope.analysed, scope.analysis.groups
    for tensor, ((number, _), *_) in members_by_tensor(groups).items():
        stored = isinstance(view.weights[tensor], LazyTensor)
        if (stored and not everywhere) or not is_float(view.weight_type(tensor)):
            continue
        defect = flaw(view.weights[tensor])
        if defect:
            name = scope.copies.get(tensor, tensor)
            raise NonFiniteError(
                f"weight '{name}' is {defect} in places, and it holds channels of fold group '{groups[number].name}', "
                "which cannot be compared or merged then: check the training",
                name,
            )


#: Weights that take a larger part of the memory limit than this wait in a file once they are edited.
_SCRATCH_PART = 4


@dataclass(frozen=True, eq=False)
class OpenedModel:
    """A model whose graphs are open."""

    source: ModelLike
    size: ModelSize  # what the model costs as it was given
    scopes: list[Scope]  # the main graph and the bodies inside it, outer graphs first
    #: Per graph and group, the network that every unit comes from, where networks are merged; empty elsewhere.
    sources: tuple[tuple[Labels | None, ...], ...] = ()
    stored: StoredNumbers | None = None  # what the file holds in few bits, and the main graph as floats
    form: GraphForm = PLAIN  # the form of the main graph
    shared: int = 0  # weights that were equal to others, and are gone

    @property
    def view(self) -> GraphView:
        """The main graph."""
        return self.scopes[0].view

    @property
    def graphs(self) -> list[tuple[GraphView, list[FoldGroup]]]:
        """Every graph, as it was analysed, with its groups."""
        return [(scope.analysed, scope.analysis.groups) for scope in self.scopes]

    def copy(self) -> "OpenedModel":
        """Return graphs that can be folded without an effect on these; the analysis is shared."""
        return replace(self, scopes=copy_scopes(self.scopes))


@dataclass(frozen=True)
class Opening:
    """How a model is opened."""

    form: GraphForm = PLAIN
    needs_groups: bool = True  # whether it is refused without channels that can be folded
    shares: bool = True  # whether equal weights are stored once
    sizes: bool = False  # whether free sizes are assumed with which it runs
    runs: bool = False  # whether onnxruntime must know its operators


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
        normal.learned_types = {}  # what was learned before a fold has fewer symbols behind it
        NORMALIZE(normal)
        counted = size_of(normal)
        size = replace(size, macs=counted.macs, macs_per=counted.macs_per)
    return size


def share_equal_weights(view: GraphView) -> int:
    """Store equal weights of a graph once; return how many numbers that saves."""
    before = count_parameters(view)
    return before - count_parameters(view) if ShareEqualWeights()(view).modified else 0


def open_model(
    model: ModelLike, input_shapes: Mapping[str, Sequence[int]], progress: Progress, opening: Opening = Opening()
) -> OpenedModel:
    """Load a model, normalise and analyse its graphs."""
    form = opening.form
    progress("load", 0, 0)
    view = load(model, input_shapes)
    if opening.runs:
        require_known_operators(view.model)
    size_bytes = bytes_of(model, view)
    stored = dequantize(view)
    if stored:  # a factor of a weight of few bits would have no form to be stored in
        form = replace(form, queries=False)
    if weight_bytes(view) > memory.limit() // _SCRATCH_PART:
        view.scratch = SpillFile()
    images: Mapping[str, Shape] = {}
    with suppress(EndlessRunError):  # said where the network is run
        images = image_sizes(view) if opening.sizes else {}
        if opening.sizes and not images:
            _assume_sizes(view)
    size = stored_size(view, size_bytes)
    progress("check weights", 0, 0)
    has_infinite = require_no_nan(view)
    progress("find fold groups", 0, 0)
    shared = share_equal_weights(view) if opening.shares else 0
    if shared:
        view.notes.append("weights that the file holds several times, as they are or turned, are stored once")
    scopes = open_scopes(view, form)
    view.pixels = scopes[0].analysed.pixels = unscaled_pixels(view)
    for scope in scopes:
        require_finite_channels(scope, everywhere=has_infinite)
    if images:  # what was analysed holds for any size
        sizes = {**view.input_shapes, **images}
        view.assume(sizes)
        scopes[0].analysed.assume(sizes)
        _note_sizes(view, images, "its height and width are free")
    if opening.needs_groups:
        try:
            require_groups(scopes)
        except NothingToFoldError:
            if opening.runs:  # a file that onnxruntime does not load may be why
                with suppress(MemoryLimitError):
                    Session(model)
            raise
    return OpenedModel(model, size, scopes, stored=stored, form=form, shared=shared)


def _assume_sizes(view: GraphView) -> None:
    """Assume sizes that a network runs with where it does not at the usual ones, and say so."""
    why = f"at a length of {FREE_DIMENSION} it does not run, or gives a single frame"
    sizes_needed = needed_sizes(view)
    if not sizes_needed and (sizes_needed := needed_batch(view)):
        why = "it takes one sample at a time"
    needed = {name: shape for name, shape in sizes_needed.items() if name not in view.input_shapes}
    if not needed:
        return
    view.assume({**view.input_shapes, **needed})
    _note_sizes(view, needed, why)


def _note_sizes(view: GraphView, shapes: Mapping[str, Shape], why: str) -> None:
    sizes = " ".join(f"{name}:{','.join(str(d or 1) for d in shape)}" for name, shape in shapes.items())
    view.notes.append(f"the network is run at {sizes}, because {why}: --input-shapes sets others")
