"""An opened model without some of its blocks, analysed anew."""

from collections.abc import Sequence
from dataclasses import replace

from onnxfold.folding.blocks.droppable import Droppable
from onnxfold.folding.open_model import OpenedModel
from onnxfold.graph.view import GraphView
from onnxfold.inputs.tokens.cache_heads import cache_outputs
from onnxfold.inputs.tokens.cache_layers import renumber_caches
from onnxfold.inputs.tokens.interface import Purpose, token_interface
from onnxfold.passes.base import Pipeline
from onnxfold.passes.merge.drop_branches import DropBranches


def remove_blocks(opened: OpenedModel, dropped: Sequence[Droppable]) -> tuple[OpenedModel, dict[str, str]]:
    """Drop from the main graph, in place; return the model, and new names of inputs and outputs, empty if they went."""
    view, (main, *bodies) = opened.view, opened.scopes
    caches = frozenset[str]().union(*(block.caches for block in dropped))
    names = _new_names(view, caches) if caches else {}
    branches = tuple(branch for block in dropped for branch in block.block.branches)
    scope = opened.form.after(Pipeline((DropBranches(branches, caches, names),)), main)
    return replace(opened, scopes=[scope, *bodies]), {**dict.fromkeys(caches, ""), **names}


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
