"""The tables that ids and positions of a language model are looked up in: an id beyond its table is an error."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from onnxfold.graph.nodes import all_nodes, attr_int
from onnxfold.graph.patterns import multiplies_weight
from onnxfold.graph.tensors import Shape, is_float
from onnxfold.graph.view import GraphView
from onnxfold.language.lookups import COUNTS, known_ids, rows_of_ids

#: Operators that hand ids on as they are.
_HAND_ON = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
#: By operator: where it reads indices, the table of words, and that of positions (-1: none).
_TABLES = {"Gather": (1, 0, -1), "GatherBlockQuantized": (1, 0, -1), "EmbedLayerNormalization": (0, 2, 3)}
#: By domain and operator: where tables of cosines are read, which have a row per position.
_TURNS = {
    ("com.microsoft", "GroupQueryAttention"): 7,
    ("com.microsoft", "RotaryEmbedding"): 2,
    ("", "RotaryEmbedding"): 1,
}
#: Ids without a table are below this.
_UNKNOWN = 2
#: Some models begin to count positions at 2.
_OFFSET = 2


@dataclass(frozen=True)
class LookUp:
    """Limits that the tables of embeddings set: ids, lengths and batches."""

    rows: int = _UNKNOWN
    is_known: bool = False  # whether a table was found; else only the smallest ids are safe
    longest: int | None = None  # longest sequence that positions reach for; None where nothing limits it
    #: Whether onnxruntime runs one sequence at a time only: cosines are computed for one, and not repeated.
    is_alone: bool = False


def look_up(view: GraphView, ids: str) -> LookUp:
    """Return the limits of the tables in which a model looks up its ids and positions."""
    nodes = list(all_nodes(view.graph.node))
    same = _holders(nodes, ids)
    readers = _readers(nodes, same)
    tables = [_table(view, node, 1) for node in readers]
    parts = _parts(view, nodes, same)
    shapes = [shape for shape in tables if shape] or _joint_shape(view, parts)
    if not shapes:
        return LookUp()
    words = min(shape[0] for shape in shapes)
    # Products widen the rows of tables of words that are narrower than what reads them.
    products = (reader for node in readers for reader in view.consumers(node.output[0]))
    widths = {shapes[0][-1], *(view.weights[n.input[1]].shape[-1] for n in products if multiplies_weight(view, n))}
    limits = [_table(view, node, 2) for node in readers]
    others = (n for n in nodes if n.op_type == "Gather" and view.is_weight(n.input[0]) and n.input[0] not in parts)
    limits += [tuple(view.weights[node.input[0]].shape) for node in others]
    rows = [s[0] for s in limits if len(s) == 2 and s[1] in widths and s not in shapes and s[0] > _OFFSET]
    turns = [*_turns(view, nodes)]
    lengths = [row - _OFFSET for row in rows] + [*_buffers(view), *(s[0] for s in turns if len(s) == 2 and s[0])]
    is_alone = any(len(s) == 3 and s[0] == 1 for s in turns)  # torch's exporter computes cosines for all sequences
    return LookUp(words, True, min((n for n in lengths if n > _OFFSET), default=None), is_alone)


def readers_of_ids(view: GraphView, ids: str) -> list[NodeProto]:
    """Return the nodes that look ids up in tables of words."""
    nodes = list(all_nodes(view.graph.node))
    return _readers(nodes, _holders(nodes, ids))


def _readers(nodes: list[NodeProto], same: set[str]) -> list[NodeProto]:
    """Return the nodes that look tensors that hold the ids up in tables of words."""
    places = ((node, _TABLES[node.op_type][0]) for node in nodes if node.op_type in _TABLES)
    return [node for node, at in places if not same.isdisjoint(node.input[at : at + 1])]


def _holders(nodes: list[NodeProto], ids: str) -> set[str]:
    """Return the tensors that hold the ids."""
    same = {ids} - {""}
    for node in nodes:  # in topological order
        if node.op_type in _HAND_ON and node.input and node.input[0] in same:
            same.update(node.output)
    return same


def _parts(view: GraphView, nodes: list[NodeProto], same: set[str]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the tables that ids are looked up in as counted from a first one, with index and shape, rows first.

    A table whose rare rows are tables of their own is several of them, see :mod:`passes.seams`.
    """
    places, parts = set[str](), dict[str, tuple[str, tuple[int, ...]]]()
    for node in nodes:
        if node.op_type in COUNTS and not (same | places).isdisjoint(node.input):
            places.update(node.output)
        elif node.op_type == "Gather" and node.input[1] in places:
            parts[node.input[0]] = node.input[1], _table(view, node, 1)
    return parts if len(parts) > 1 and all(shape for _, shape in parts.values()) else {}


def _joint_shape(view: GraphView, parts: dict[str, tuple[str, tuple[int, ...]]]) -> list[tuple[int, ...]]:
    """Return the shape of the table that parts stand for: it has a row for every id that all of them have one for."""
    if not parts:
        return []
    most = sum(shape[0] for _, shape in parts.values())
    known = (known_ids(rows_of_ids(view, index, most), shape[0]) for index, shape in parts.values())
    return [(min(most, *known), max(shape[-1] for _, shape in parts.values()))]


def _table(view: GraphView, node: NodeProto, which: int) -> tuple[int, ...]:
    """Return the shape, rows first, of the table of words (1) or of positions (2) of a node; empty if not known."""
    at = _TABLES[node.op_type][which]
    shape = view.shape(node.input[at]) if 0 <= at < len(node.input) and node.input[at] else None
    axis = attr_int(node, "gather_axis" if node.op_type == "GatherBlockQuantized" else "axis", 0)
    if not shape or not -len(shape) <= axis < len(shape):
        return ()
    rows, *others = (shape[axis], *(d for i, d in enumerate(shape) if i != axis % len(shape)))
    return () if rows is None else (rows, *(d or 0 for d in others))


def _buffers(view: GraphView) -> Iterator[int]:
    """Yield the lengths of constants that hold all positions in a row, or a mask of all pairs of them."""
    for name, weight in view.weights.items():
        shape = tuple(weight.shape)
        is_square = len(shape) == 4 and shape[:2] == (1, 1) and shape[2] == shape[3]
        is_row = len(shape) == 2 and shape[0] == 1 and not is_float(view.weight_type(name))
        counts = is_row and np.array_equal(view.weight(name)[0], np.arange(shape[1]))
        if (is_square or counts) and shape[-1] > 1:
            yield shape[-1]


def _turns(view: GraphView, nodes: list[NodeProto]) -> Iterator[Shape]:
    """Yield the shapes of tables of cosines: (positions, pairs), or (sequences, positions, pairs) in their order."""
    for node in nodes:
        at = _TURNS.get((node.domain, node.op_type), len(node.input))
        if at < len(node.input) and (shape := view.shape(node.input[at])):
            yield shape
