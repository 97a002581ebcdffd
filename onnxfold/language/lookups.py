"""Operators of language models: norms, sums, attention and its projections; tables, and which rows ids find."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce

import numpy as np
from onnx import NodeProto

from onnxfold.graph.nodes import DEFAULT_DOMAINS, attr_int, captured_names
from onnxfold.graph.patterns import multiplies_weight, only_reader
from onnxfold.graph.tensors import Array, Matrix, is_float
from onnxfold.graph.view import GraphView

MICROSOFT = "com.microsoft"
#: Operators that norm every row of the last axis by itself.
NORMS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
#: Norms of onnxruntime that add their first two inputs: the operator that norms a single tensor, with the places of its
#: other inputs, and the input that is added, too.
SUM_AND_NORM = {
    "SkipSimplifiedLayerNormalization": ("SimplifiedLayerNormalization", (2,), 3),
    "SkipLayerNormalization": ("LayerNormalization", (2, 3), 4),
}
#: The output of these that holds the sum.
SUM = 3
#: Operators of attention that read queries first, and the input that is a cache of keys.
CACHED_KEYS = {
    ("GroupQueryAttention", MICROSOFT): 3, ("MultiHeadAttention", MICROSOFT): 6,
    ("Attention", ""): 4, ("Attention", "ai.onnx"): 4,
}  # fmt: skip
#: Operators that count ids from another first id, or keep them inside of a table.
COUNTS: dict[str, Callable[[Array, Array], Array]] = {"Max": np.maximum, "Min": np.minimum, "Sub": np.subtract}
_MATRIX = 2


def looks_up(view: GraphView, node: NodeProto, along: int = 0) -> bool:
    """Whether a node looks up in a weight of two axes, along one of them: by default rows."""
    if node.op_type != "Gather" or node.domain not in DEFAULT_DOMAINS or not view.is_weight(node.input[0]):
        return False
    is_matrix = len(view.weights[node.input[0]].shape) == _MATRIX
    return is_matrix and attr_int(node, "axis", 0) in (along, along - _MATRIX)


def rows_of_ids(view: GraphView, index: str, count: int) -> Array:
    """Return the rows of the ids 0, 1, ..., shape (count,); empty where an index does not follow from ids alone."""
    every, leaves = np.arange(count), set[str]()

    def value(name: str) -> Array:
        if view.is_weight(name) and view.weight_size(name) == 1:
            return view.weight(name).reshape(())
        node = view.producer(name)
        if node is None or node.op_type not in COUNTS or node.domain not in DEFAULT_DOMAINS:
            leaves.add(name)
            return every
        return reduce(COUNTS[node.op_type], map(value, node.input))

    rows = np.broadcast_to(value(index), every.shape)
    return rows if len(leaves) == 1 else every[:0]


def is_part(view: GraphView, table: str) -> bool:
    """Whether several ids find the same row of a table, of zeros: what they stand for is found elsewhere."""
    for node in view.consumers(table):
        counted = view.producer(node.input[1]) if looks_up(view, node) else None
        if counted is None or counted.op_type not in COUNTS:
            continue
        rows = view.weights[table].shape[0]
        indices = rows_of_ids(view, node.input[1], rows + 2)
        ids = np.bincount(indices[: known_ids(indices, rows)], minlength=rows)
        if (ids > 1).any() and not view.weight(table)[ids > 1].any():
            return True
    return False


def known_ids(rows: Array, table_rows: int) -> int:
    """Return how many ids, from 0 on, find rows of a table."""
    outside = (rows < 0) | (rows >= table_rows)
    return int(np.append(outside, True).argmax())


def row_chances(view: GraphView, table: str, chances: Matrix) -> Matrix:
    """Return how common every row of a table is."""
    rows, *_ = view.weights[table].shape
    for node in view.consumers(table):
        if looks_up(view, node):
            indices = rows_of_ids(view, node.input[1], len(chances))
            if known_ids(indices, rows) == len(chances):
                return np.bincount(indices, weights=chances, minlength=rows).astype(np.float64)
    return chances


#: Rare words are so many times more common in other texts than in the one at hand: of a hundred words, a model writes
#: 1.4, 1.2 and 1.3 of three classes of them, Wikipedia has 3.3, 1.8 and 1.8, and a manual 1.7 and 2.9 of the last two.
#: Of a hundred words that are drawn by frequency, 6, 4 and 6 are such.
RARE_ELSEWHERE = 1.75
#: What queries of lower rank lose on other texts, beside what other layers lose there: of SmolLM2-135M, all queries of
#: rank 144 cost 0.058 nats on text of its own, 0.053 on Wikipedia, 0.058 on a manual; narrower feed-forward layers cost
#: 1.5 to 2 times as much there as on its own text.
QUERIES_ELSEWHERE = 0.6
#: Where the published recipe of Fold-AR folds LLaMA, in fractions of its depth: of 32 blocks the first 11 and the last
#: 2 stay.
FOLD_AR_START, FOLD_AR_STOP = 11 / 32, 30 / 32


#: Operators that may lie between a projection and the attention that reads it.
_BETWEEN = frozenset({"Reshape", "Transpose", "RotaryEmbedding", *NORMS})
#: Most numbers of all bases together: axes of each, and their inverse, are kept until widths are chosen.
_MOST_NUMBERS = 64 << 20


@dataclass(frozen=True)
class Projection:
    """A product x W, and a bias that may be added."""

    nodes: tuple[NodeProto, ...]  # the product, and perhaps the Add of a weight with one axis
    weights: tuple[str, ...]  # W, of shape (inputs, outputs), and perhaps the weight that is added


def projection(view: GraphView, tensor: str) -> Projection | None:
    """Return the projection that writes a tensor, None where other nodes read what it computes, or hold its weights."""
    node = view.producer(tensor)
    shifts: tuple[NodeProto, ...] = ()
    bias: list[str] = []
    if node is not None and node.op_type == "Add" and _is_alone(view, tensor):
        bias = [name for name in node.input if view.is_weight(name)]
        others = [name for name in node.input if name not in bias]
        if len(bias) != 1 or len(others) != 1 or only_reader(view, bias[0]) is None:
            return None
        shifts, tensor, node = (node,), others[0], view.producer(others[0])
    if node is None or not _is_product(view, node) or not _is_alone(view, tensor):
        return None
    columns = view.weights[node.input[1]].shape[1:]
    fits = all(view.weights[name].shape == columns for name in bias)
    return Projection((node, *shifts), (node.input[1], *bias)) if fits else None


def query_products(view: GraphView) -> Iterator[NodeProto]:
    """Yield the products that write the queries of attention whose keys go into a cache; their heads stay."""
    for node in view.nodes:
        cache = CACHED_KEYS.get((node.op_type, node.domain))
        if cache is None or not all(len(node.input) > i and node.input[i] for i in (1, cache)):
            continue
        source = node.input[0]
        while (before := view.producer(source)) is not None and before.op_type in _BETWEEN and _is_alone(view, source):
            source = before.input[0]
        writer = projection(view, source)
        if writer is not None:
            yield writer.nodes[0]


def packed_projection(view: GraphView, node: NodeProto) -> Projection | None:
    """Return the projection whose queries, keys and values a node reads behind each other, None for other nodes."""
    if (node.op_type, node.domain) != ("GroupQueryAttention", MICROSOFT) or any(node.input[1:3]):
        return None
    packed = projection(view, node.input[0])
    if packed is None:
        return None
    counts = head_counts(node)
    heads, columns = counts[0] + 2 * counts[1], view.weights[packed.weights[0]].shape[1]
    return packed if min(counts) > 0 and columns % heads == 0 else None


def head_counts(node: NodeProto) -> tuple[int, int]:
    """Return how many heads of queries, and of keys, a GroupQueryAttention has; 0 where it does not say."""
    return attr_int(node, "num_heads", 0), attr_int(node, "kv_num_heads", 0)


def have_room(view: GraphView) -> bool:
    """Return whether bases of what all queries are computed of fit into memory."""
    packed = (packed_projection(view, node) for node in view.nodes)
    weights = {projected.weights[0] for projected in packed if projected is not None}
    weights |= {product.input[1] for product in query_products(view)}
    return sum(view.weights[name].shape[0] ** 2 for name in weights) <= _MOST_NUMBERS


def _is_product(view: GraphView, node: NodeProto) -> bool:
    if not multiplies_weight(view, node):
        return False
    weight = node.input[1]
    is_matrix = len(view.weights[weight].shape) == _MATRIX and is_float(view.weight_type(weight))
    return is_matrix and only_reader(view, weight) is not None and not view.is_weight(node.input[0])


def _is_alone(view: GraphView, tensor: str) -> bool:
    """Whether a single node reads a tensor, and no body and nobody outside."""
    reader = only_reader(view, tensor)
    return reader is not None and tensor not in captured_names(reader)
