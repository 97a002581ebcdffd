"""Search for weights that are NaN or infinite. Each float weight is read once, in pieces."""

from collections.abc import Iterator

import numpy as np
from onnx import ModelProto

from onnxfold.errors import NonFiniteError
from onnxfold.graph.nodes import model_nodes, node_key, subgraphs
from onnxfold.graph.tensors import LazyTensor, Weight, constant_value, is_float, pieces_of, type_of
from onnxfold.graph.view import GraphView

NAN, INFINITE = "NaN", "infinite"


def flaw(weight: Weight) -> str:
    """Return the flaw of a float tensor: 'NaN', 'infinite', or '' for nothing; NaN outranks."""
    kind = ""
    for piece in pieces_of(weight):
        if not np.isfinite(piece).all():
            if np.isnan(piece).any():
                return NAN
            kind = INFINITE
    return kind


def require_no_nan(view: GraphView) -> bool:
    """Check all float weights of a model, Constant nodes, bodies and functions included."""
    infinite = False
    weights = ((name, view.weights[name]) for name in view.float_weight_names())
    for name, weight in (*weights, *_inner_weights(view.model)):
        kind = flaw(weight)
        if kind == NAN:
            raise NonFiniteError(
                f"weight '{name}' is NaN in places: the training diverged or the file is damaged, and the "
                "model's outputs mean nothing",
                name,
            )
        infinite |= kind == INFINITE
    return infinite


def edited_flaws(view: GraphView) -> dict[str, str]:
    """Return the edited or computed float weights of a graph that are not finite, and how."""
    floats = ((name, view.weights[name]) for name in view.float_weight_names())
    edited = ((name, weight) for name, weight in floats if not isinstance(weight, LazyTensor) or weight.is_edited)
    return {name: kind for name, weight in edited if (kind := flaw(weight))}


def _inner_weights(model: ModelProto) -> Iterator[tuple[str, Weight]]:
    """Yield the values of Constant nodes, and the weights and constants of bodies."""
    for node in model_nodes(model):
        value = constant_value(node)
        if value is not None and is_float(type_of(value)):
            yield node_key(node), value
        held = (tensor for body in subgraphs(node) for tensor in body.initializer)
        yield from ((tensor.name, LazyTensor(tensor)) for tensor in held if is_float(tensor.data_type))
