"""The hash of a model as it stands in a view: equal for equal graphs and weights, in every process."""

import hashlib
from collections.abc import Iterator

import numpy as np

from onnxfold.graph.nodes import captured_names
from onnxfold.graph.tensors import Array, LazyTensor, Weight
from onnxfold.graph.view import GraphView

#: Elements that are read at a time.
_PIECE = 1 << 22


def fingerprint(view: GraphView) -> str:
    """Return the SHA-256 of nodes, names, shapes and weights, those of open bodies included."""
    hashed = hashlib.sha256(view.model.SerializeToString(deterministic=True))
    hashed.update(repr(sorted(view.input_shapes.items())).encode())
    captured = {name for node in view.nodes for name in captured_names(node)}
    for name in sorted({*view.weights, *captured}):
        holder = view.holder(name)
        if holder is None:
            continue
        weight = holder.weights[name]
        hashed.update(f"\n{name}:{holder.weight_type(name)}:{tuple(weight.shape)}:".encode())
        for piece in _pieces(weight):
            if piece.dtype == object:  # texts
                hashed.update(repr(piece.tolist()).encode())
            else:
                hashed.update(np.ascontiguousarray(piece).view(np.uint8).data)
    return hashed.hexdigest()


def _pieces(weight: Weight) -> Iterator[Array]:
    if isinstance(weight, LazyTensor):
        yield from weight.pieces(_PIECE)
    else:
        yield np.asarray(weight).reshape(-1)
