"""Residual branches, found by structure: what a node adds to a stream that it was computed from.

A node adds two tensors, the stream x and a branch f(x, ...), of the same shape: Add, or a norm of onnxruntime that
first adds its two inputs. Without the branch the stream goes on as it is, so the rest of the graph stays valid. What
lies between the stream and the branch is its *region*: the nodes that the stream leads to, and that lead to the branch.

A branch holds weights of its own, matrices at least: x + f(x) of an activation function is none. A region in which
another branch is added to a stream is none, either, but what the inner branches lie in.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from onnx import NodeProto

from onnxfold.graph.nodes import DEFAULT_DOMAINS, captured_names, node_key, reached_nodes, read_names
from onnxfold.graph.tensors import is_float
from onnxfold.graph.view import GraphView
from onnxfold.language.lookups import MICROSOFT, SUM_AND_NORM

#: Operators that attention is made of, where it is not one.
_MIXES = ("MatMul", "Softmax")
_MATRIX = 2


@dataclass(frozen=True)
class ResidualBranch:
    """A branch, and where it is added to its stream."""

    join: str  # key of the node that adds
    stream: str  # the two tensors that it adds
    result: str
    region: frozenset[str]  # keys of the nodes between them
    #: The operators of these nodes that hold matrices or multiply activations, sorted: those of attention differ from
    #: those of a feed-forward layer.
    kind: tuple[str, ...]
    name: str  # the first node with a weight matrix, which tells a reader where it lies


#: Branches of one stream behind each other, as attention and the feed-forward layer behind it.
ResidualBlock = Sequence[ResidualBranch]


def residual_branches(view: GraphView) -> list[ResidualBranch]:
    """Return the branches of a normalised graph, in the order in which they are added."""
    places = {node_key(node): i for i, node in enumerate(view.nodes)}
    branches: list[ResidualBranch] = []
    joins: set[str] = set()
    for node in view.nodes:
        branch = next((b for stream, result in _sums(view, node) if (b := _branch(view, places, node, stream, result))),
                      None)  # fmt: skip
        if branch is not None and joins.isdisjoint(branch.region):
            branches.append(branch)
            joins.add(branch.join)
    return branches


def residual_blocks(branches: Sequence[ResidualBranch]) -> Sequence[ResidualBlock]:
    """Return branches in blocks: a new one begins where the first kind of branch of a network comes again."""
    first = branches[0].kind if branches else ()
    repeats = sum(branch.kind == first for branch in branches) > 1
    blocks: list[list[ResidualBranch]] = []
    for branch in branches:
        if not blocks or branch.kind == first or not repeats:
            blocks.append([])
        blocks[-1].append(branch)
    return blocks


def _sums(view: GraphView, node: NodeProto) -> Iterator[tuple[str, str]]:
    """Yield what a node adds, as stream and branch, in both ways; nothing for other nodes."""
    adds = node.op_type == "Add" and node.domain in DEFAULT_DOMAINS
    norms = node.op_type in SUM_AND_NORM and node.domain == MICROSOFT
    if not (adds or norms) or any(view.is_weight(name) for name in node.input[:2]):
        return
    if norms and node.op_type == "SkipLayerNormalization" and view.opset() < 17:
        return  # without the branch it is LayerNormalization, which is not known yet
    a, b = node.input[:2]
    yield from ((a, b), (b, a)) if a != b and _alike(view, a, b) else ()


def _alike(view: GraphView, a: str, b: str) -> bool:
    """Whether two tensors have the same shape, as far as it is known, so that neither is broadcast."""
    shape, other_shape = view.shape(a), view.shape(b)
    if not shape or not other_shape or len(shape) != len(other_shape):
        return False
    return all(x == y or (None in (x, y) and 1 not in (x, y)) for x, y in zip(shape, other_shape, strict=True))


def _branch(
    view: GraphView, places: dict[str, int], join: NodeProto, stream: str, result: str
) -> ResidualBranch | None:
    region = _region(view, places, stream, result)
    if not region or node_key(join) in region:
        return None
    nodes = [view.nodes[i] for i in sorted(places[key] for key in region)]
    if any(captured_names(node) for node in nodes):
        return None
    held = [node for node in nodes if any(_is_matrix(view, name) for name in node.input)]
    if not held:
        return None
    kind = tuple(sorted(n.op_type for n in nodes if n in held or n.op_type in _MIXES or "Attention" in n.op_type))
    return ResidualBranch(node_key(join), stream, result, frozenset(region), kind, held[0].name or node_key(held[0]))


def _region(view: GraphView, places: dict[str, int], stream: str, result: str) -> set[str]:
    """Return the nodes that a stream leads to and that lead to a result; none if the one does not lead to the other."""
    source = view.producer(stream)
    first = -1 if source is None else places[node_key(source)]
    before: dict[str, NodeProto] = {}
    ahead = [result]
    while ahead:
        node = view.producer(ahead.pop())
        if node is None or node_key(node) in before or places[node_key(node)] <= first:
            continue
        before[node_key(node)] = node
        ahead += read_names(node)
    # What adds and norms gives the sum and its norm: the branch reads the norm.
    behind = {stream} if source is None or source.op_type not in SUM_AND_NORM else set(filter(None, source.output))
    nodes = [before[key] for key in sorted(before, key=places.__getitem__)]
    region = list(reached_nodes(nodes, behind))
    leads = result in behind.union(*(node.output for node in region))
    return set(map(node_key, region)) if leads and result != stream else set()


def _is_matrix(view: GraphView, name: str) -> bool:
    return bool(name) and view.is_weight(name) and is_float(view.weight_type(name)) and (
        len(view.weights[name].shape) >= _MATRIX and view.weight_size(name) > max(view.weights[name].shape)
    )  # fmt: skip
