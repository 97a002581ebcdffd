"""Blocks that can be dropped, what goes with them, and the model without them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from onnx import NodeProto

from onnxfold.folding.open_model import OpenedModel
from onnxfold.graph.bodies import needed_nodes
from onnxfold.graph.nodes import captured_names, node_key
from onnxfold.graph.tensors import is_float
from onnxfold.graph.view import GraphView
from onnxfold.inputs.tokens.cache_heads import cache_heads, cache_outputs, renumber_caches
from onnxfold.inputs.tokens.interface import Purpose, token_interface
from onnxfold.language.residual_branches import (
    SUM_AND_NORM,
    ResidualBlock,
    ResidualBranch,
    residual_blocks,
    residual_branches,
)
from onnxfold.passes.base import Pipeline
from onnxfold.passes.merge.drop_branches import DropBranches


@dataclass(frozen=True)
class Droppable:
    """Branches that go together."""

    block: ResidualBlock  # the branches, behind each other
    weights: int  # float weights that nothing else reads
    caches: frozenset[str] = frozenset()  # inputs and outputs that go, too


@dataclass(frozen=True)
class Stays:
    """A branch that cannot be dropped, and why."""

    branch: ResidualBranch
    reason: str


def droppable_blocks(view: GraphView, *, may_change_caches: bool, whole: bool) -> tuple[list[Droppable], list[Stays]]:
    """Return the blocks that can be dropped from a normalised graph, in its order, and the branches that cannot."""
    read = cache_heads(view)
    caches = frozenset((*read, *cache_outputs(view.output_names))) if read else frozenset()
    branches = residual_branches(view)
    stays = {b.join: why for b in branches if (why := _obstacle(view, b, caches, may_change=may_change_caches))}
    blocks = residual_blocks(branches) if whole else [ResidualBlock((branch,)) for branch in branches]
    parts = [part for block in blocks for part in _parts(block, stays)]
    return (
        [Droppable(part, *_along(view, part.branches, caches)) for part in parts],
        [Stays(branch, stays[branch.join]) for branch in branches if branch.join in stays],
    )


def _parts(block: ResidualBlock, stays: Iterable[str]) -> list[ResidualBlock]:
    """Return the branches of a block that may go, those behind each other together."""
    parts: list[list[ResidualBranch]] = [[]]
    for branch in block.branches:
        if branch.join in stays:
            parts.append([])
        else:
            parts[-1].append(branch)
    return [ResidualBlock(tuple(part)) for part in parts if part]


def _obstacle(view: GraphView, branch: ResidualBranch, caches: frozenset[str], *, may_change: bool) -> str:
    """Return why a branch has to stay; empty if it may go."""
    held = _outputs_behind(view, branch) & caches
    if held and not may_change:
        return f"the model's output '{min(held)}' holds its past: it goes only with --allow-cache-change"
    left = _needed_nodes(view, [branch], held)
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
    left = _needed_nodes(view, branches, held)
    read = frozenset().union(*(_read(view, branch.region) & caches for branch in branches))
    needed = {name for node in view.nodes if node_key(node) in left for name in _kept_inputs(node, branches)}
    lost = [n for n in view.weights if n not in needed and is_float(view.weight_type(n)) and view.consumers(n)]
    return sum(map(view.weight_size, lost)), held | read


def _kept_inputs(node: NodeProto, branches: Sequence[ResidualBranch]) -> list[str]:
    """Return the tensors that a node reads when branches are dropped."""
    names = [name for name in (*node.input, *captured_names(node)) if name]
    branch = next((branch for branch in branches if branch.join == node_key(node)), None)
    if branch is None:
        return names
    others = SUM_AND_NORM[node.op_type][1] if node.op_type in SUM_AND_NORM else ()
    return [branch.stream, *(node.input[i] for i in others if i < len(node.input) and node.input[i])]


def _needed_nodes(view: GraphView, branches: Sequence[ResidualBranch], held: Iterable[str]) -> set[str]:
    """Return the nodes that are needed without some branches and the outputs that they hold."""
    outputs = set(view.output_names) - set(held)
    joins = {branch.join: branch for branch in branches}
    instead = {node_key(n): _kept_inputs(n, branches) for n in view.nodes if node_key(n) in joins}
    return needed_nodes(view, outputs, instead)


def _read(view: GraphView, region: Iterable[str]) -> set[str]:
    nodes = (node for key in region if (node := view.producer(key)) is not None)
    return {name for node in nodes for name in node.input}


def _outputs_behind(view: GraphView, branch: ResidualBranch) -> set[str]:
    """Return the outputs of the model that depend on a branch by another way than the sum with its stream."""
    outputs, behind = set(view.output_names), set[str]()
    for node in view.nodes:
        key = node_key(node)
        if key in branch.region or (key != branch.join and not behind.isdisjoint((*node.input, *captured_names(node)))):
            behind.update(filter(None, node.output))
    return behind & outputs


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
