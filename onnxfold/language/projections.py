"""Projections: products with a weight, perhaps with a bias, that attention reads as queries, keys and values."""

from collections.abc import Iterator
from dataclasses import dataclass

from onnx import NodeProto

from onnxfold.graph.nodes import attr_int, captured_names
from onnxfold.graph.patterns import multiplies_weight, only_reader
from onnxfold.graph.tensors import is_float
from onnxfold.graph.view import GraphView
from onnxfold.language.lookups import CACHED_KEYS, MICROSOFT, NORMS

#: Operators that may lie between a projection and the attention that reads it.
_BETWEEN = frozenset({"Reshape", "Transpose", "RotaryEmbedding", *NORMS})
_MATRIX = 2
#: Most numbers of all bases together: axes of each, and their inverse, are kept until widths are chosen.
_MOST_NUMBERS = 64 << 20


@dataclass(frozen=True)
class Projection:
    """A product x W, and a bias that may be added."""

    product: NodeProto
    shift: NodeProto | None = None  # the Add of a weight with one axis

    @property
    def weight(self) -> str:
        """W, of shape (inputs, outputs)."""
        return str(self.product.input[1])

    def bias(self, view: GraphView) -> str:
        """Return the weight that is added; '' without one."""
        return next((name for name in self.shift.input if view.is_weight(name)), "") if self.shift is not None else ""

    @property
    def result(self) -> str:
        """The tensor that it writes."""
        return str((self.shift or self.product).output[0])

    @property
    def nodes(self) -> list[NodeProto]:
        """The nodes, in the order in which they run."""
        return [self.product] if self.shift is None else [self.product, self.shift]


def projection(view: GraphView, tensor: str) -> Projection | None:
    """Return the projection that writes a tensor, None where other nodes read what it computes, or hold its weights."""
    node = view.producer(tensor)
    shift = None
    if node is not None and node.op_type == "Add" and _is_alone(view, tensor):
        bias = [name for name in node.input if view.is_weight(name)]
        others = [name for name in node.input if name not in bias]
        if len(bias) != 1 or len(others) != 1 or not _is_own(view, bias[0]):
            return None
        shift, tensor, node = node, others[0], view.producer(others[0])
    if node is None or not _is_product(view, node) or not _is_alone(view, tensor):
        return None
    result = Projection(node, shift)
    columns = view.weights[result.weight].shape[1:]
    return result if shift is None or view.weights[result.bias(view)].shape == columns else None


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
            yield writer.product


def packed_projection(view: GraphView, node: NodeProto) -> Projection | None:
    """Return the projection whose queries, keys and values a node reads behind each other, None for other nodes."""
    if (node.op_type, node.domain) != ("GroupQueryAttention", MICROSOFT) or any(node.input[1:3]):
        return None
    packed = projection(view, node.input[0])
    if packed is None:
        return None
    counts = head_counts(node)
    heads, columns = counts[0] + 2 * counts[1], view.weights[packed.weight].shape[1]
    return packed if min(counts) > 0 and columns % heads == 0 else None


def head_counts(node: NodeProto) -> tuple[int, int]:
    """Return how many heads of queries, and of keys, a GroupQueryAttention has; 0 where it does not say."""
    return attr_int(node, "num_heads", 0), attr_int(node, "kv_num_heads", 0)


def have_room(view: GraphView) -> bool:
    """Return whether bases of what all queries are computed of fit into memory."""
    packed_products = (
        projected.product
        for projected in (packed_projection(view, node) for node in view.nodes)
        if projected is not None
    )
    weights = {product.input[1] for product in (*packed_products, *query_products(view))}
    return sum(view.weights[name].shape[0] ** 2 for name in weights) <= _MOST_NUMBERS


def _is_product(view: GraphView, node: NodeProto) -> bool:
    if not multiplies_weight(view, node):
        return False
    weight = node.input[1]
    is_matrix = len(view.weights[weight].shape) == _MATRIX and is_float(view.weight_type(weight))
    return is_matrix and _is_own(view, weight) and not view.is_weight(node.input[0])


def _is_own(view: GraphView, weight: str) -> bool:
    """Whether a single node reads a weight."""
    return only_reader(view, weight) is not None


def _is_alone(view: GraphView, tensor: str) -> bool:
    """Whether a single node reads a tensor, and no body and nobody outside."""
    reader = only_reader(view, tensor)
    return reader is not None and tensor not in captured_names(reader)
