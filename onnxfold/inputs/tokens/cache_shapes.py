"""Shapes of the caches that a language model reads, completed by what its attention says."""

from onnx import NodeProto

from onnxfold.graph.nodes import attr_int
from onnxfold.graph.shapes.tensor_types import Shape
from onnxfold.graph.view import GraphView

#: Words in the symbols of dimensions that count positions.
_LENGTHS = ("past", "seq", "len", "total")
#: Operators with heads as attributes: where past keys are read, and the input that tells the size of the query.
_ATTENTION = {"GroupQueryAttention": (3, 4), "MultiHeadAttention": (6, 7), "Attention": (4, 5)}
_QUERY, _KEY = 0, 1


def cache_shape(view: GraphView, name: str, shape: Shape) -> Shape:
    """Return the shape of a cache, None where it depends on the batch and where it is as long as what it holds.

    Exporters leave other dimensions free, too; then the operator that reads the cache tells them.
    """
    batch = 1 if len(shape) == 5 else 0  # keys and values together, (2, batch, heads, length, size)
    free = [axis for axis, d in enumerate(shape) if d is None and axis != batch]
    if len(free) < 2:
        return shape
    symbols = view.symbols(name) or ("",) * len(shape)
    counting = [axis for axis in free if any(word in symbols[axis].lower() for word in _LENGTHS)]
    length = counting[0] if counting else len(shape) - 2 if len(shape) - 2 in free else free[0]
    heads, size = next((_heads(view, node) for node in view.consumers(name) if node.op_type in _ATTENTION), (0, 0))
    known = {len(shape) - 3: heads, len(shape) - 1: size}
    return tuple((known.get(axis, 0) or None) if axis in free and axis != length else d for axis, d in enumerate(shape))


def _heads(view: GraphView, node: NodeProto) -> tuple[int, int]:
    """Return the number of heads in a cache, and their size; 0 for what is not known."""
    queries = attr_int(node, "num_heads", 0)
    cached = attr_int(node, "kv_num_heads", 0) or queries
    width = _width(view, node.input[_QUERY])
    is_packed = len(node.input) <= _KEY or not node.input[_KEY]
    heads = queries + 2 * cached if is_packed else queries
    return cached, width // heads if heads else 0


def _width(view: GraphView, tensor: str) -> int:
    """Return the last dimension of a tensor, of the weight that made it where shapes say nothing; 0 if unknown."""
    shape = view.shape(tensor)
    if shape and shape[-1] is not None:
        return shape[-1]
    node = view.producer(tensor)
    if node is None or node.op_type not in ("Add", "Cast", "Identity", "MatMul"):
        return 0
    for name in node.input:
        if view.is_weight(name) and view.weights[name].shape:
            return int(view.weights[name].shape[-1])
    return _width(view, node.input[0])
