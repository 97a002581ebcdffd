"""Remove what changes nothing: identities, zero biases and states, and what no output depends on."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, TensorProto, defs, numpy_helper

from onnxfold.graph.nodes import DEFAULT_DOMAINS, attribute, captured_names, node_key, rewritten, subgraphs
from onnxfold.graph.patterns import Match, Mismatch, Op
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult
from onnxfold.passes.rewrite import Rewrite

_BIAS = 2  #: number of the input of Conv, ConvTranspose and Gemm
#: Numbers of the inputs that hold the initial hidden and cell state.
_STATES = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}
#: Operators whose result is zero where their first input is.
_PASS_ZEROS = frozenset({"Cast", "Expand", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze"})


@dataclass(frozen=True)
class EliminateIdentity(Pass):
    """Route readers of Identity and inference-mode Dropout straight to its input.

    Case 1: an initializer routed through Identity (deduplicated weights in exported models). Case 2: Identity
    between activations. Case 3: Dropout without a mask that anybody reads. A node that writes a graph output, or
    whose value a subgraph reads by name, stays.
    """

    def run(self, view: GraphView) -> PassResult:
        """Rename inputs in one sweep."""
        fixed = set(view.output_names)
        for node in view.nodes:
            inner = _inner_names(node)
            fixed.update(inner, node.output if inner else ())
        renamed: dict[str, str] = {}
        for node in view.nodes:
            inputs = [renamed.get(name, name) for name in node.input]
            if _is_identity(view, node, inputs) and node.output[0] not in fixed:
                renamed[node.output[0]] = inputs[0]
        view.rename_inputs(renamed)
        return PassResult(view.substitute({}, removed=renamed))


def _is_identity(view: GraphView, node: NodeProto, inputs: Sequence[str]) -> bool:
    """Whether a node, with these inputs, passes on the first of them."""
    if node.op_type != "Dropout" or node.domain not in DEFAULT_DOMAINS:
        return node.op_type == "Identity" and node.domain in DEFAULT_DOMAINS
    if any(view.consumers(o) or o in view.output_names for o in node.output[1:] if o):
        return False
    training = inputs[2] if len(inputs) > 2 else ""
    return not training or (view.is_weight(training) and not bool(view.weight(training).reshape(-1)[0]))


def _inner_names(node: NodeProto) -> set[str]:
    """Return the names that bodies of a node read or give out, at any depth."""
    graphs = list(subgraphs(node))
    names = {o.name for graph in graphs for o in graph.output}
    return names.union(*({*n.input, *_inner_names(n)} for graph in graphs for n in graph.node))


@dataclass(frozen=True)
class DropZeroBias(Rewrite):
    """Remove the optional bias input of linear operators where it is a constant zero.

    The unoptimised dynamo export computes such biases (Expand of 0); as constants they would be new
    weights that the network does not need.
    """

    patterns = (Op("Conv|ConvTranspose|Gemm"),)

    def replace(self, view: GraphView, match: Match) -> list[NodeProto]:
        """Cut the input; the initializer goes with the unused ones."""
        (node,) = match.nodes
        bias = node.input[_BIAS] if len(node.input) > _BIAS else ""
        if not view.is_weight(bias) or np.any(view.weight(bias)):
            raise Mismatch("it has no bias of zeros")
        if defs.get_schema(node.op_type, view.opset(), "").min_input > _BIAS:
            raise Mismatch("in this operator set it needs a bias")
        return [rewritten(node, inputs=node.input[:_BIAS])]


@dataclass(frozen=True)
class DropZeroStates(Rewrite):
    """Leave out initial states of LSTM, GRU and RNN that are zero, which is what they are where none is given.

    torch writes zeros of a size that is computed from the batch. Their width would hold the hidden units.
    """

    patterns = (Op("|".join(_STATES)),)

    def replace(self, view: GraphView, match: Match) -> list[NodeProto]:
        """Cut the inputs; what computed them goes with what is unused."""
        (node,) = match.nodes
        states = _STATES[node.op_type]
        inputs = ["" if i in states and t and _is_zero(view, t) else t for i, t in enumerate(node.input)]
        if inputs == node.input:
            raise Mismatch("it has no states of zeros")
        while not inputs[-1]:
            inputs.pop()
        return [rewritten(node, inputs=inputs)]


def _is_zero(view: GraphView, tensor: str) -> bool:
    """Whether a tensor holds nothing but zeros, however large it is."""
    while not view.is_weight(tensor):
        node = view.producer(tensor)
        if node is None or node.domain not in DEFAULT_DOMAINS:
            return False
        if node.op_type == "ConstantOfShape":
            value = attribute(node, "value")
            return not isinstance(value, TensorProto) or not np.any(numpy_helper.to_array(value))
        if node.op_type not in _PASS_ZEROS:
            return False
        tensor = node.input[0]
    return not np.any(view.weight(tensor))


@dataclass(frozen=True)
class RemoveUnused(Pass):
    """Drop nodes without a path to an output, and initializers without a reader; inputs stay."""

    def run(self, view: GraphView) -> PassResult:
        """Walk backwards once."""
        needed = set(view.output_names)
        lost = set()
        for node in reversed(view.nodes):
            if any(o in needed for o in node.output):
                needed.update(filter(None, [*node.input, *captured_names(node)]))
            else:
                lost.add(node_key(node))
        modified = view.substitute({}, removed=lost)
        # Sparse initializers and quantisation annotations name weights too; they stay.
        needed |= {a.value for q in view.graph.quantization_annotation for a in q.quant_parameter_tensor_names}
        unused = [name for name in view.weights if name not in needed]
        view.remove_weights(unused)
        view.drop_lost_infos()
        return PassResult(modified=modified or bool(unused))
