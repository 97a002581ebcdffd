"""Make a float model of QDQ ONNX, for a runtime that is quantised by its own quantiser."""

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, helper

from onnxfold.graph.nodes import attr_int
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult, Pipeline
from onnxfold.passes.normalize.unneeded import RemoveUnused

#: Operators without negative results of what they read here.
_NEVER_BELOW_ZERO = frozenset({"Relu", "Clip", "Sigmoid", "HardSigmoid", "Softmax", "MaxPool", "Flatten", "Reshape"})
_RELU6 = 6.0


@dataclass(frozen=True)
class DropQuantisation(Pass):
    """Dequantise constants, and let readers of a quantised activation read it as it was.

    Quantisers drop a Relu or a Clip to 6 before integers whose range begins at zero: these are put back.
    """

    def run(self, view: GraphView) -> PassResult:
        """Replace and rename."""
        renamed: dict[str, str] = {}
        nodes: list[NodeProto] = []
        for node in view.nodes:
            source = view.producer(node.input[0]) if node.op_type == "DequantizeLinear" else None
            if node.op_type == "DequantizeLinear" and view.is_weight(node.input[0]):
                renamed[node.output[0]] = view.add_weight(node.input[0].removesuffix("_quantized"), _floats(view, node))
            elif source is None or source.op_type != "QuantizeLinear":
                nodes.append(node)
            elif node.output[0] in view.output_names:
                nodes.append(helper.make_node("Identity", source.input[:1], node.output, name=node.name))
            else:
                nodes += (put_back := _clipping_nodes(view, source, view.fresh_name(source.input[0])))
                value = put_back[0].output[0] if put_back else source.input[0]
                renamed[node.output[0]] = renamed.get(value, value)
        if not renamed:
            return PassResult(False)
        view.replace_nodes(nodes)
        view.rename_inputs(renamed)
        return PassResult(True)


def _floats(view: GraphView, node: NodeProto) -> Array:
    """Return the numbers that integers stand for."""
    stored, scale = view.weight(node.input[0]), view.weight(node.input[1])
    zero = view.weight(node.input[2]) if len(node.input) > 2 and node.input[2] else np.zeros_like(scale)
    if scale.ndim:
        shape = [1] * stored.ndim
        shape[attr_int(node, "axis", 1)] = -1
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    floats: Array = ((stored.astype(np.float64) - zero) * scale).astype(scale.dtype)
    return floats


def _clipping_nodes(view: GraphView, node: NodeProto, name: str) -> list[NodeProto]:
    """Return the Relu or Clip that the integers of a QuantizeLinear stand for, if they do."""
    producer = view.producer(node.input[0])
    if producer is None or producer.op_type in _NEVER_BELOW_ZERO or len(node.input) < 3:
        return []
    if not view.is_weight(node.input[1]) or not view.is_weight(node.input[2]):
        return []
    scale, zero = float(view.weight(node.input[1])), view.weight(node.input[2])
    limits = np.iinfo(zero.dtype)
    if int(zero) != limits.min:
        return []
    if abs(scale * (limits.max - limits.min) - _RELU6) > scale:
        return [helper.make_node("Relu", [node.input[0]], [name], name=name)]
    bounds = [view.add_weight(f"{name}_{n}", np.array(v, np.float32)) for n, v in (("min", 0.0), ("max", _RELU6))]
    return [helper.make_node("Clip", [node.input[0], *bounds], [name], name=name)]


#: Before an export that quantises by itself.
TO_FLOATS = Pipeline((DropQuantisation(), RemoveUnused()))
