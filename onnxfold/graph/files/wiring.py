"""Checks of a graph's wiring: unique names, no missing names, no cycles.

Defects are reported; nodes that are merely not in the order of execution are sorted. onnxruntime refuses all
that is refused here, and onnx's checker most of it. Time and memory grow linearly with the number of nodes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from onnxfold.graph.nodes import subgraphs

#: An input or a weight is there before the first node.
_GIVEN = -1
#: So many nodes of a cycle are named.
_NAMED = 6


class WiringError(Exception):
    """A defect of a graph's wiring, in words."""


@dataclass(frozen=True)
class _Around:
    """A graph around a body: which node writes each of its names, and which node holds the body."""

    writers: dict[str, int]
    holder: int


def node_label(node: NodeProto) -> str:
    """Return how messages call a node."""
    return f"node '{node.name or next(iter(node.output), '')}' ({node.op_type})"


def sort_nodes(model: ModelProto, weights: Iterable[str]) -> int:
    """Bring the nodes of a model, bodies and functions included, into an order in which they can run."""
    _check_calls(model.functions)
    moved = sum(_sort(f, f.input, f.output, ())[1] for f in model.functions)
    return moved + _sort_graph(model.graph, weights, ())[1]


def _sort_graph(graph: GraphProto, weights: Iterable[str], around: tuple[_Around, ...]) -> tuple[dict[str, str], int]:
    inputs = [i.name for i in graph.input]
    twice = _repeated(inputs)
    if twice is not None:
        raise WiringError(f"two inputs of a graph are called '{twice}'")
    sources = [*inputs, *weights, *(t.name for t in graph.initializer)]
    sources += [t.values.name for t in graph.sparse_initializer]
    return _sort(graph, sources, [o.name for o in graph.output], around)


def _sort(
    graph: GraphProto | FunctionProto, sources: Iterable[str], results: Iterable[str], around: tuple[_Around, ...]
) -> tuple[dict[str, str], int]:
    """Check and sort one graph; return the outer names that it reads, by the node that reads them, and nodes moved."""
    nodes = list(graph.node)
    named = _repeated(node.name for node in nodes if node.name)
    if named is not None:
        raise WiringError(f"two nodes are called '{named}'; onnxruntime does not load that either: rename one")
    writers = _writers(nodes, dict.fromkeys(sources, _GIVEN), around)
    captured: dict[str, str] = {}
    needs: list[list[int]] = []
    moved = 0
    for i, node in enumerate(nodes):
        read = dict.fromkeys(filter(None, node.input), "")
        for body in subgraphs(node):
            inner, unsorted = _sort_graph(body, (), (*around, _Around(writers, i)))
            read |= inner
            moved += unsorted
        for name, reader in read.items():
            if name in writers:
                continue
            if not any(name in outer.writers for outer in around):
                raise WiringError(
                    f"{reader or node_label(node)} reads '{name}', which is neither an input, nor a weight, nor a "
                    "node's output"
                )
            captured[name] = reader or node_label(node)
        needs.append([writer for writer in (writers.get(name, _GIVEN) for name in read) if writer != _GIVEN])
    for name in results:
        if name not in writers:
            raise WiringError(f"the output '{name}' of a graph is neither an input, nor a weight, nor a node's output")
    early = sum(any(writer >= i for writer in need) for i, need in enumerate(needs))
    if early:
        fresh = [NodeProto.FromString(nodes[i].SerializeToString()) for i in _order(nodes, needs)]
        del graph.node[:]
        graph.node.extend(fresh)
    return captured, moved + early


def _writers(nodes: Sequence[NodeProto], writers: dict[str, int], around: tuple[_Around, ...]) -> dict[str, int]:
    """Return which node writes each name of a graph; inputs and weights are in `writers` already."""
    for i, node in enumerate(nodes):
        for name in filter(None, node.output):
            if name in writers:
                other = writers[name]
                also = "is an input or a weight too" if other == _GIVEN else f"{node_label(nodes[other])} writes too"
                raise WiringError(f"{node_label(node)} writes '{name}', which {also}: every name must be written once")
            if any(outer.writers.get(name, outer.holder) < outer.holder for outer in around):
                raise WiringError(f"{node_label(node)} writes '{name}', which a graph around it has already")
            writers[name] = i
    return writers


def _order(nodes: Sequence[NodeProto], needs: list[list[int]]) -> list[int]:
    """Return an order in which nodes can run; of those that can run the one that stands first comes first."""
    readers: list[list[int]] = [[] for _ in nodes]
    waits = [len(need) for need in needs]
    for i, need in enumerate(needs):
        for writer in need:
            readers[writer].append(i)
    ready = [i for i, count in enumerate(waits) if not count]
    heapify(ready)
    order = []
    while ready:
        order.append(heappop(ready))
        for reader in readers[order[-1]]:
            waits[reader] -= 1
            if not waits[reader]:
                heappush(ready, reader)
    if len(order) < len(nodes):
        raise WiringError(_cycle(nodes, needs, set(range(len(nodes))) - set(order)))
    return order


def _cycle(nodes: Sequence[NodeProto], needs: list[list[int]], stuck: set[int]) -> str:
    """Return a cycle in words: every node that is stuck waits for one that is."""
    place: dict[int, int] = {}
    at = min(stuck)
    while at not in place:
        place[at] = len(place)
        at = next(writer for writer in needs[at] if writer in stuck)
    cycle = [i for i in place if place[i] >= place[at]][::-1]
    if len(cycle) == 1:
        return f"{node_label(nodes[at])} reads its own output: a cycle"
    dots = ", ..." if len(cycle) > _NAMED else ""
    return f"a cycle: {', '.join(node_label(nodes[i]) for i in cycle[:_NAMED])}{dots} need each other's outputs"


def _check_calls(functions: Sequence[FunctionProto]) -> None:
    """Refuse functions that call themselves, directly or through others."""
    calls = {(f.domain, f.name, f.overload): f for f in functions}
    open_calls: dict[tuple[str, str, str], bool] = {}  # False: done
    for start in calls:
        way = [] if start in open_calls else [start]
        while way:
            at = way[-1]
            if at in open_calls:
                open_calls[at] = False
                way.pop()
                continue
            open_calls[at] = True
            for called in dict.fromkeys(_operators(calls[at].node)):
                if open_calls.get(called):
                    raise WiringError(f"the function '{called[1]}' calls itself")
                if called in calls and called not in open_calls:
                    way.append(called)


def _operators(nodes: Iterable[NodeProto]) -> Iterable[tuple[str, str, str]]:
    for node in nodes:
        yield node.domain, node.op_type, node.overload
        for body in subgraphs(node):
            yield from _operators(body.node)


def _repeated(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
