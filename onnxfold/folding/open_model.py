"""Load a model, check it, and analyse its graphs: the part of a fold before the request matters."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from onnxfold.channels import FoldGroup
from onnxfold.cluster.partition import Labels
from onnxfold.errors import MemoryLimitError, NothingToFoldError
from onnxfold.folding.after.lossless import bytes_of, share_equal_weights, stored_size
from onnxfold.folding.scopes import (
    PLAIN,
    GraphForm,
    Scope,
    copy_scopes,
    open_scopes,
    require_finite_channels,
    require_groups,
)
from onnxfold.graph.files.load import ModelLike, load
from onnxfold.graph.files.save import weight_bytes
from onnxfold.graph.files.scratch import Scratch
from onnxfold.graph.finite import require_no_nan
from onnxfold.graph.run.runtime import require_known_operators
from onnxfold.graph.run.session import Session
from onnxfold.graph.view import GraphView
from onnxfold.inputs.free_sizes import needed_sizes
from onnxfold.inputs.images.synthetic import FREE_DIMENSION
from onnxfold.machine import memory
from onnxfold.progress import Progress
from onnxfold.quantize.block_weights import BlockWeight, dequantize_blocks
from onnxfold.report import ModelSize

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
    blocks: tuple[BlockWeight, ...] = ()  # weights of few bits, which the main graph holds as numbers
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


def open_model(
    model: ModelLike,
    input_shapes: Mapping[str, Sequence[int]],
    progress: Progress,
    opening: Opening = Opening(),
) -> OpenedModel:
    """Load a model, normalise and analyse its graphs."""
    form = opening.form
    progress("load", 0, 0)
    view = load(model, input_shapes)
    if opening.runs:
        require_known_operators(view.model)
    size_bytes = bytes_of(model, view)
    blocks = dequantize_blocks(view)
    if blocks:  # a factor of a weight of few bits would have no blocks to be stored in
        form = replace(form, queries=False)
    if weight_bytes(view) > memory.limit() // _SCRATCH_PART:
        view.use_scratch(Scratch())
    size = stored_size(view, size_bytes)
    if opening.sizes:
        _assume_sizes(view)
    progress("check weights", 0, 0)
    has_infinite = require_no_nan(view)
    progress("find fold groups", 0, 0)
    shared = share_equal_weights(view) if opening.shares else 0
    if shared:
        view.notes.append("weights that the file holds several times, as they are or turned, are stored once")
    scopes = open_scopes(view, form)
    for scope in scopes:
        require_finite_channels(scope, everywhere=has_infinite)
    if opening.needs_groups:
        try:
            require_groups(scopes)
        except NothingToFoldError:
            if opening.runs:  # a file that onnxruntime does not load may be why
                with suppress(MemoryLimitError):
                    Session(model)
            raise
    return OpenedModel(model, size, scopes, blocks=blocks, form=form, shared=shared)


def _assume_sizes(view: GraphView) -> None:
    """Assume sizes that a network runs with where it does not at the usual ones, and say so."""
    needed = {name: shape for name, shape in needed_sizes(view).items() if name not in view.input_shapes}
    if not needed:
        return
    view.assume({**view.input_shapes, **needed})
    sizes = " ".join(f"{name}:{','.join(map(str, shape))}" for name, shape in needed.items())
    view.notes.append(
        f"the network is run at {sizes}, because it does not run at a length of {FREE_DIMENSION}: --input-shapes sets "
        "others"
    )
