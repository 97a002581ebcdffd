"""An opened model without some of its blocks, analysed anew."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from onnxfold.channels import find_groups
from onnxfold.channels.declarations import Tie
from onnxfold.folding.droppable import Droppable
from onnxfold.folding.open_model import OpenedModel
from onnxfold.graph.view import GraphView
from onnxfold.inputs.tokens.cache_heads import cached
from onnxfold.inputs.tokens.cache_layers import renumbered
from onnxfold.inputs.tokens.interface import Part, token_interface
from onnxfold.passes.base import Pipeline
from onnxfold.passes.merge.drop_branches import DropBranches

#: Takes a normalised graph, returns the axes of its interface that may change.
Ties = Callable[[GraphView], Sequence[Tie]]


def without_blocks(opened: OpenedModel, dropped: Sequence[Droppable], ties: Ties) -> tuple[OpenedModel, dict[str, str]]:
    """Drop from the main graph, in place; return the model, and new names of inputs and outputs, empty if they went.

    Parameters
    ----------
    opened : OpenedModel
        The model.
    dropped : sequence of Droppable
        What goes.
    ties : callable
        As of :func:`onnxfold.folding.open_model.open_model`.
    """
    main, view = opened.scopes[0], opened.view
    caches = frozenset[str]().union(*(one.caches for one in dropped))
    names = _new_names(view, caches) if caches else {}
    branches = tuple(branch for one in dropped for branch in one.block.branches)
    records = Pipeline((DropBranches(branches, caches, names),))(view).records
    scope = replace(main, analysis=find_groups(view, ties(view)), records=[*main.records, *records])
    return replace(opened, scopes=[scope, *opened.scopes[1:]]), {**dict.fromkeys(caches, ""), **names}


def _new_names(view: GraphView, removed: frozenset[str]) -> dict[str, str]:
    """Return new names for the caches that stay; none if one of them is in use."""
    names = renumbered(caches_read(view), removed) | renumbered(cached(view.output_names), removed)
    free = removed | names.keys()
    taken = {name for node in view.nodes for name in node.output} | {*view.input_names, *view.weights}
    return names if all(new in free or new not in taken for new in names.values()) else {}


def caches_read(view: GraphView) -> list[str]:
    """Return the inputs that hold caches.

    Parameters
    ----------
    view : GraphView
        The model.
    """
    interface = token_interface(view)
    return [] if interface is None else [one.name for one in interface.of(Part.CACHE)]
