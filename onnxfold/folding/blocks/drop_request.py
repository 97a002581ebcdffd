"""Requests for blocks to drop: checked before anything is run."""

from dataclasses import dataclass

from onnxfold.config import FoldConfig
from onnxfold.errors import BudgetError, ConfigError, NothingToFoldError
from onnxfold.folding.blocks.droppable import Droppable, droppable_blocks
from onnxfold.folding.methods import Method
from onnxfold.folding.open_model import OpenedModel

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
    if method.drops_blocks and (config.search_option or config.has_limits or config.ratios or config.channel_ratio):
        raise ConfigError(f"method '{method.name}' drops whole blocks: give a sparsity or drop_blocks as its goal")
    searches = config.drop_blocks == "auto" and not method.drops_blocks
    droppable, stay = droppable_blocks(opened.view, may_change_caches=config.allow_cache_change, whole=not searches)
    notes: tuple[str, ...] = ()
    if stay:
        name = stay[0].branch.name
        notes = (f"{len(stay)} residual branches stay, the first of them at '{name}': {stay[0].reason}",)
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
