"""Replace what is computed from shapes by constants."""

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from onnxfold.graph.nodes import attribute, node_key, rewritten
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult
from onnxfold.passes.normalize.constants import FoldConstants

#: Two batches that no other size is likely to be a multiple of.
_SIZES = (7, 11)


@dataclass(frozen=True)
class FreezeBatchShapes(Pass):
    """Evaluate what depends on nothing but shapes, for two sizes of the batch, and write down what holds for both.

    Case 1: a value that is the same for both is a constant. Case 2: the shape of an Expand, of which the entries that
    follow the batch lie on dimensions of the data that follow it: they become 1, which leaves the dimension as it is.
    Case 3: the sizes of a Resize of which the first follows the batch: they become scales. Only first dimensions of
    inputs may be free; they all are the batch. FreezeReshapes has written the shapes of Reshapes.
    """

    def run(self, view: GraphView) -> PassResult:
        """Replace inputs of nodes."""
        computed = [n for n in view.nodes if n.op_type in ("Shape", "Size", "ConstantOfShape", "If")]
        free = [name for name in view.input_names if (view.shape(name) or ())[:1] == (None,)]
        if not computed or not free:
            return PassResult(False)
        folded = [_fold_at_batch(view, free, size) for size in _SIZES]
        changed: dict[str, NodeProto] = {}
        for node in view.nodes:
            inputs = list(node.input)
            for i, name in enumerate(node.input):
                if view.is_weight(name) or not all(name in f.weights for f in folded):
                    continue
                values = [f.weight(name) for f in folded]
                if node.op_type == "Resize" and i == 3:
                    inputs[2:] = _scales_for_sizes(view, node, values) or inputs[2:]
                    continue
                constant = _common(view, node.op_type, i, node.input[0], values)
                if constant is not None:
                    inputs[i] = view.add_weight(f"{name}_frozen", constant)
            if inputs != node.input:
                changed[node_key(node)] = rewritten(node, inputs=inputs)
        return PassResult(view.substitute(changed))


def _fold_at_batch(view: GraphView, free: list[str], batch: int) -> GraphView:
    """Return a copy for one size of the batch, with everything folded that this makes constant."""
    copy = view.copy()
    copy.fix_input_shapes(dict.fromkeys(free, (batch,)))
    FoldConstants()(copy)
    return copy


def _scales_for_sizes(view: GraphView, node: NodeProto, values: list[Array]) -> list[str]:
    """Return the inputs of a Resize with scales in place of sizes that follow the batch only on the first axis."""
    shape = view.shape(node.input[0])
    if attribute(node, "axes") is not None or shape is None or None in shape[1:]:
        return []
    if any(int(v[0]) != b for v, b in zip(values, _SIZES, strict=True)) or np.any(values[0][1:] != values[1][1:]):
        return []
    scales = np.array([1.0, *(int(o) / int(n or 1) for o, n in zip(values[0][1:], shape[1:], strict=True))], np.float32)
    reached = np.floor(scales[1:].astype(np.float64) * np.array(shape[1:], np.float64))
    scales[1:] = np.where(reached < values[0][1:], np.nextafter(scales[1:], np.float32(np.inf)), scales[1:])
    return [view.add_weight(f"{node.output[0]}_scales", scales), ""]


def _common(view: GraphView, op_type: str, index: int, data: str, values: list[Array]) -> Array | None:
    """Return a constant that means both values; None if no constant does."""
    if values[0].shape != values[1].shape or values[0].dtype != values[1].dtype:
        return None
    differing = np.flatnonzero(values[0] != values[1])
    if not differing.size:
        return values[0]
    shape = view.shape(data)
    if op_type != "Expand" or index != 1 or values[0].ndim != 1 or shape is None:
        return None
    follows = all(int(v[d]) % b == 0 for v, b in zip(values, _SIZES, strict=True) for d in differing)
    offset = len(values[0]) - len(shape)
    if not follows or not all(d >= offset and shape[d - offset] is None for d in differing):
        return None
    frozen = values[0].copy()
    frozen[differing] = 1
    return frozen
