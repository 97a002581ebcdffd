"""Write calls out, and make weights of constants and of what is computed from them."""

import contextlib
import io
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import NodeProto, defs, helper, inliner

from onnxfold.graph.nodes import DEFAULT_DOMAINS, attr_int, model_of, node_key, subgraphs
from onnxfold.graph.patterns import picked_dimensions
from onnxfold.graph.shapes.footprint import GROWING, tensor_bytes
from onnxfold.graph.tensors import Array, constant_value, to_proto
from onnxfold.graph.view import GraphView
from onnxfold.machine import memory
from onnxfold.passes.base import Pass, PassResult

_LOGGER = logging.getLogger(__name__)


def result_bytes(view: GraphView, node: NodeProto) -> int | None:
    """Return the bytes of a node's results, counted from shapes; None where they may be of any size."""
    shapes = {name: view.shape(name) for name in filter(None, (*node.input, *node.output))}
    sizes = {name: tensor_bytes((view.elem_type(name), s, ())) for name, s in shapes.items() if s is not None}
    results = [sizes.get(name) for name in node.output if name]
    if None in results and node.op_type in GROWING:
        return None
    read = sum(sizes.get(name) or 0 for name in node.input if name)
    return sum(8 * read if size is None else size for size in results)


def evaluate(view: GraphView, nodes: Sequence[NodeProto], limit_bytes: int) -> dict[str, Array]:
    """Compute the outputs of nodes whose inputs are all weights, or outputs of earlier ones of them.

    Only these nodes pass through onnx-graphsurgeon, in a graph of their own: it drops what it does not
    model (metadata, functions, unknown attributes) and would do so for the whole network.
    """
    made = dict.fromkeys(o for n in nodes for o in n.output if o)  # in order: files must not depend on hashing
    inputs = dict.fromkeys(i for n in nodes for i in n.input if i and i not in made)
    model = model_of(nodes, [], [to_proto(name, view.weight(name)) for name in inputs], view.model)
    surgeon = gs.import_onnx(onnx.shape_inference.infer_shapes(model))
    with contextlib.redirect_stdout(io.StringIO()) as chatter:
        surgeon.fold_constants(size_threshold=limit_bytes, error_ok=True)
    if chatter.getvalue():
        _LOGGER.debug("onnx-graphsurgeon: %s", chatter.getvalue().strip())
    tensors = surgeon.tensors()
    return {name: tensors[name].values for name in made if isinstance(tensors.get(name), gs.Constant)}


_RANDOM = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial")
_MAX_SWEEPS = 8
#: Bytes up to which a constant may grow, however few the weights are.
_LEAST_GROWN = 4 << 10
#: Of a number in a table.
_LEAST_BYTES = 2
#: What may be computed on the way to smaller constants.
_COMPUTED_BYTES = 256 << 20


class InlineFunctions(Pass):
    """Replace calls of model-local functions by their bodies, so that channels can be followed through them."""

    def run(self, view: GraphView) -> PassResult:
        """Inline with onnx's own inliner; weights do not pass through it."""
        if not view.model.functions:
            return PassResult(modified=False)
        view.replace_model(inliner.inline_local_functions(view.model))
        return PassResult(modified=True)


class LiftConstants(Pass):
    """Turn Constant nodes into initializers and take initializers off the list of graph inputs.

    Case 1: ``Constant`` with a dense value. Case 2: an initializer listed as graph input, which old
    exporters write; a caller could override it, which would undo the fold, so it becomes a plain weight.
    """

    def run(self, view: GraphView) -> PassResult:
        """Lift what can be lifted."""
        constants = {n.output[0]: v for n in view.nodes if (v := constant_value(n)) is not None}
        view.put_weights(constants)
        modified = view.substitute({}, removed=constants)
        return PassResult(view.unlist_weights() or modified)


@dataclass(frozen=True)
class FoldConstants(Pass):
    """Replace nodes by their values where these do not depend on the model's inputs.

    Case 1: every input is an initializer. Case 2: Shape of a tensor whose dimensions are all known. Case 3: single
    known dimensions picked or sliced out of a Shape (the legacy exporter's `chunk`). Case 4: CastLike of an
    initializer. Nothing that would grow beyond `limit_bytes`, or a `share` of all weights, is materialised unless it
    replaces weights of at least that size, and does not stay beside them: a pitch tracker of .1 MB computes windows and
    filters of 1 MB. No table of ids is written a second time, turned. QuantizeLinear, DequantizeLinear and
    BatchNormalization stay.
    """

    limit_bytes: int = 1 << 20
    share: float | None = None

    def run(self, view: GraphView) -> PassResult:
        """Sweep until nothing changes: values can make further shapes known.

        Dimensions that are assumed for the analysis must not be written into the model.
        """
        with view.without_assumptions():
            return PassResult(self._sweep(view))

    def _sweep(self, view: GraphView) -> bool:
        modified = False
        sizes = {name: view.weight_size(name) for name in view.weights}
        sources = {name: frozenset([name]) for name in view.weights}
        grown: float = self.limit_bytes
        if self.share is not None:
            weights = 4 * sum(sizes[name] for name in view.float_weight_names())
            grown = min(max(self.share * weights, _LEAST_GROWN), grown)
        outputs = set(view.output_names)  # their nodes stay: a name is a weight or a node's result, not both
        for _ in range(_MAX_SWEEPS):
            inner = (n for n in view.nodes if n.output[0] not in outputs)
            known = {n.output[0]: v for n in inner if (v := _known_value(view, n)) is not None}
            foldable = _constant_nodes(view, set(known), self.limit_bytes)
            if not known and not foldable:
                break
            view.put_weights(known)
            largest = max((view.weights[i].size * 8 for n in foldable for i in n.input if view.is_weight(i)), default=0)
            values = known | (evaluate(view, foldable, max(self.limit_bytes, largest)) if foldable else {})
            for node in foldable:
                read = frozenset[str]().union(*(sources.get(name, ()) for name in node.input))
                sources |= dict.fromkeys(node.output, read)
                most = max(grown, 8 * sum(sizes[name] for name in read))
                for name in node.output:
                    if name in values and np.asarray(values[name]).nbytes > most:
                        del values[name]
            done = [n for n in view.nodes if all(not o or (o in values and o not in outputs) for o in n.output)]
            if not done:
                break
            view.put_weights({o: np.asarray(values[o]) for n in done for o in n.output if o})
            modified = view.substitute({}, removed={node_key(n) for n in done})
        return modified


def _constant_nodes(view: GraphView, known: set[str], limit_bytes: int) -> list[NodeProto]:
    constant = set(known)
    nodes = []
    left = memory.limit() // 4
    for node in view.nodes:
        if node.output[0] in known or not _is_pure(node):
            continue
        if all(not i or i in constant or view.is_weight(i) for i in node.input):
            # What is not known yet may be so in the next sweep, when the inputs are constants.
            results = result_bytes(view, node)
            shapes = [view.shape(name) for name in node.input if name]
            elements = max((prod(d or 1 for d in shape) for shape in shapes if shape is not None), default=0)
            if results is None or results > max(_COMPUTED_BYTES, 8 * elements) or results > left:
                continue
            keeps = results > limit_bytes and _keeps_a_weight(view, node, constant, limit_bytes)
            if keeps or _turns_a_table(view, node, constant):
                continue
            left -= results
            nodes.append(node)
            constant.update(node.output)
    return nodes


def _keeps_a_weight(view: GraphView, node: NodeProto, constant: set[str], limit_bytes: int) -> bool:
    """Whether a large weight stays beside a node's result, because others read it as it is (tied tables of words)."""
    held = [n for n in node.input if view.is_weight(n) and view.weight_size(n) * _LEAST_BYTES > limit_bytes]
    readers = (reader for name in held for reader in view.consumers(name))
    return any(name and name not in constant and not view.is_weight(name) for r in readers for name in r.input)


def _turns_a_table(view: GraphView, node: NodeProto, constant: set[str]) -> bool:
    """Whether a node turns a table that ids are looked up in, and others read: it would be two, and count as such."""
    if node.op_type != "Transpose" or len(view.consumers(node.input[0])) == 1:
        return False
    readers = (reader for name in (node.input[0], node.output[0]) for reader in view.consumers(name))
    indices = (reader.input[1] for reader in readers if reader.op_type == "Gather")
    return any(not view.is_weight(index) and index not in constant for index in indices)


def _is_pure(node: NodeProto) -> bool:
    if node.domain not in DEFAULT_DOMAINS or node.op_type in _RANDOM or any(True for _ in subgraphs(node)):
        return False
    return node.op_type not in ("QuantizeLinear", "DequantizeLinear", "Constant") and defs.has(node.op_type)


def _known_value(view: GraphView, node: NodeProto) -> Array | None:
    if node.domain not in DEFAULT_DOMAINS:
        return None
    if node.op_type == "CastLike" and view.is_weight(node.input[0]):
        elem_type = view.elem_type(node.input[1])
        return view.weight(node.input[0]).astype(helper.tensor_dtype_to_np_dtype(elem_type)) if elem_type else None
    source = view.producer(node.input[0]) if node.op_type in ("Gather", "Slice") else node
    if source is None or source.op_type != "Shape":
        return None
    shape = view.shape(source.input[0])
    if shape is None:
        return None
    stated = shape[attr_int(source, "start", 0) : attr_int(source, "end", len(shape))]
    # Single dimensions may be known though others are not.
    index = np.arange(len(stated)) if source is node else picked_dimensions(view, node, len(stated))
    if index is None or (source is not node and index.size == 0):
        return None
    sizes = [stated[int(i)] for i in index.reshape(-1)]
    return None if None in sizes else np.array(sizes, np.int64).reshape(index.shape)
