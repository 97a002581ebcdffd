"""Remove what changes nothing: identities, zero biases and states, what no output reads, weights stored twice."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import NodeProto, TensorProto, defs, helper, numpy_helper

from onnxfold.graph.bodies import needed_nodes
from onnxfold.graph.nodes import DEFAULT_DOMAINS, attribute, captured_names, node_key, read_names, rewritten
from onnxfold.graph.patterns import Match, Mismatch, Op
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult, Rewrite

_BIAS = 2  #: number of the input of Conv, ConvTranspose and Gemm
#: Numbers of the inputs that hold the initial hidden and cell state.
_STATES = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}
#: Operators whose result is zero where their first input is.
_PASS_ZEROS = frozenset({"Cast", "Expand", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze"})


class EliminateIdentity(Pass):
    """Route readers of Identity and inference-mode Dropout straight to its input.

    Case 1: an initializer routed through Identity (deduplicated weights in exported models). Case 2: Identity
    between activations. Case 3: Dropout without a mask that anybody reads. A node that writes a graph output, or
    whose value a subgraph reads by name, stays.
    """

    def run(self, view: GraphView) -> PassResult:
        """Rename inputs in one sweep."""
        fixed = set(view.output_names).union(*map(captured_names, view.nodes))
        renamed: dict[str, str] = {}
        for node in view.nodes:
            inputs = [renamed.get(name, name) for name in node.input]
            if passes_on(view, node, inputs) and node.output[0] not in fixed:
                renamed[node.output[0]] = inputs[0]
        view.rename_inputs(renamed)
        return PassResult(view.substitute({}, removed=renamed))


def passes_on(view: GraphView, node: NodeProto, inputs: Sequence[str]) -> bool:
    """Whether a node, with these inputs, passes on the first of them."""
    if node.op_type != "Dropout" or node.domain not in DEFAULT_DOMAINS:
        return node.op_type == "Identity" and node.domain in DEFAULT_DOMAINS
    if any(view.consumers(o) or o in view.output_names for o in node.output[1:] if o):
        return False
    training = inputs[2] if len(inputs) > 2 else ""
    return not training or (view.is_weight(training) and not bool(view.weight(training).reshape(-1)[0]))


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


class RemoveUnused(Pass):
    """Drop nodes without a path to an output, and initializers without a reader; inputs stay."""

    def run(self, view: GraphView) -> PassResult:
        """Remove the nodes first."""
        lost = {node_key(node) for node in view.nodes} - needed_nodes(view, view.output_names, {})
        modified = view.substitute({}, removed=lost)
        needed = {*view.output_names, *(name for n in view.nodes for name in read_names(n))}
        # Sparse initializers and quantisation annotations name weights too; they stay.
        needed |= {a.value for q in view.graph.quantization_annotation for a in q.quant_parameter_tensor_names}
        unused = [name for name in view.weights if name not in needed]
        view.remove_weights(unused)
        view.drop_lost_infos()
        return PassResult(modified=modified or bool(unused))


#: Smaller weights are not worth a node, nor that layers share their channels.
_LEAST_BYTES = 1024
#: Numbers of a diagonal, the same in a matrix and in its transpose, that tell most weights apart.
_SEEN = 64

#: A weight, and whether it is read turned.
_Source = tuple[str, bool]


class UnshareInitializers(Pass):
    """Copy vectors (one axis longer than 1) that several inputs read.

    Optimisers deduplicate equal biases and BatchNormalization parameters, which would couple channels of unrelated
    layers. Copies that stay equal are shared again by ShareInitializers. Matrices and filters stay shared: there the
    sharing is the model's own (siamese branches, tied weights).
    """

    def run(self, view: GraphView) -> PassResult:
        """Copy for every reader but the first."""
        seen: set[str] = set()
        names: dict[str, Iterator[str]] = {}
        copies: dict[str, str] = {}
        rewired: dict[str, NodeProto] = {}
        for node in view.nodes:
            inputs = list(node.input)
            for i, name in enumerate(inputs):
                if not view.is_weight(name) or sum(d > 1 for d in view.weights[name].shape) != 1:
                    continue
                if name in seen:
                    copy = next(names.setdefault(name, view.fresh_names(f"{name}_copy")))
                    view.put_weights({copy: view.weights[name]})
                    copies[copy] = name
                    inputs[i] = copy
                seen.add(name)
            if inputs != node.input:
                rewired[node_key(node)] = rewritten(node, inputs=inputs)
        return PassResult(view.substitute(rewired), copies)


@dataclass(frozen=True)
class ShareInitializers(Pass):
    """Merge the copies that UnshareInitializers made with their original where they are still equal.

    Others that happen to be equal stay: sharing the means and variances that a repair normalised would
    count as weights removed, which the fold did not earn.
    """

    #: The copies, with the names of what they are copies of, as :class:`~onnxfold.passes.base.PassResult` has them.
    copies: Mapping[str, str] = field(default_factory=dict)

    def run(self, view: GraphView) -> PassResult:
        """Rename readers of a copy to the first equal one."""
        first: dict[tuple[str, bytes], str] = {}
        renamed: dict[str, str] = {}
        pairs = ((name, original) for copy, original in self.copies.items() for name in (original, copy))
        for name, original in pairs:
            if name in view.weights:
                kept = first.setdefault((original, view.weight(name).tobytes()), name)
                renamed |= {name: kept} if kept != name else {}
        return PassResult(view.rename_inputs(renamed))


class ShareEqualWeights(Pass):
    """Let all readers of equal float weights of two and more axes read the first of them.

    Case 1: equal weights. Case 2: a table that ids are looked up in, and a matrix that is its transpose (the head of a
    language model, tied in training and exported twice): what reads the matrix reads a Transpose of the table, which
    runtimes compute once, when they load the model.
    """

    def run(self, view: GraphView) -> PassResult:
        """Rename what is read, and put a Transpose before its first reader."""
        renamed, nodes = {}, []
        for name, (kept, is_turned) in _equal(view):
            renamed[name] = view.fresh_name(f"{name}_turned") if is_turned else kept
            if is_turned:
                result = renamed[name]
                nodes.append(helper.make_node("Transpose", [kept], [result], result, perm=[1, 0]))
        if not renamed:
            return PassResult(modified=False)
        view.rename_inputs(renamed)
        view.replace_nodes([*nodes, *view.nodes])
        RemoveUnused()(view)
        return PassResult(modified=True)


def _equal(view: GraphView) -> Iterator[tuple[str, _Source]]:
    """Yield weights that are stored twice, with what is read in place of them."""
    alike: dict[tuple[object, ...], list[str]] = {}
    for name in _candidates(view):
        shape = view.weights[name].shape
        size = tuple(sorted(shape)) if len(shape) == 2 else tuple(shape)
        alike.setdefault((view.weight_type(name), len(shape), size), []).append(name)
    for names in alike.values():
        kept: dict[bytes, list[str]] = {}
        # Tables first, as they stay.
        for name in sorted(names, key=lambda n: not _is_table(view, n)) if len(names) > 1 else ():
            values = view.weight(name)
            signature = np.diagonal(values.reshape(len(values), -1))[:_SEEN].tobytes()
            others = kept.setdefault(signature, [])
            source = next((s for other in others if (s := _source(view, other, values)) is not None), None)
            if source is None:
                others.append(name)
            else:
                yield name, source


def _candidates(view: GraphView) -> Iterator[str]:
    """Yield float weights that may be read under another name: neither bodies nor callers of the model read them."""
    listed = {info.name for info in (*view.graph.input, *view.graph.output)}
    for name in view.float_weight_names():
        shape = view.weights[name].shape
        is_matrix = sum(d > 1 for d in shape) > 1 and 4 * view.weight_size(name) >= _LEAST_BYTES
        if is_matrix and name not in listed and all(name in reader.input for reader in view.consumers(name)):
            yield name


def _source(view: GraphView, kept: str, values: Array) -> _Source | None:
    """Return a weight as the source of values; None where it holds others."""
    stored = view.weight(kept)
    if stored.shape == values.shape and stored.tobytes() == values.tobytes():
        return kept, False
    is_turned = stored.ndim == 2 and _is_table(view, kept) and np.array_equal(stored.T, values)
    return (kept, True) if is_turned else None


def _is_table(view: GraphView, name: str) -> bool:
    """Whether ids that are computed at run time are looked up in a weight."""
    readers = view.consumers(name)
    return any(n.op_type == "Gather" and n.input[0] == name and not view.is_weight(n.input[1]) for n in readers)
