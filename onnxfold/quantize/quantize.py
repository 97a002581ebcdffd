"""Quantisation of a model: prepare -> measure ranges -> QDQ; of one that reads text, prepare -> integer products.

Activations of transformers have a few channels that are a hundred times as large as the others, other ones in every
layer. One range for all texts leaves most values a few steps, so each product takes the range of what it just reads.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import onnx
from onnx import ModelProto, NodeProto, TensorProto

from onnxfold.budget.costs.weights import count_parameters
from onnxfold.channels.layers import linear_weights
from onnxfold.config.quantities import show_bytes
from onnxfold.errors import UnsupportedModelError, VerificationError
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import PROTOBUF_LIMIT, to_model, weight_bytes
from onnxfold.graph.nodes import captured_names, dequantized_tensors, is_quantized, node_key
from onnxfold.graph.view import GraphView
from onnxfold.machine import memory
from onnxfold.passes.base import Pipeline
from onnxfold.passes.fusion.fuse_batch_norm import FuseBatchNorm
from onnxfold.passes.normalize.unneeded import RemoveUnused
from onnxfold.progress import Progress, silent
from onnxfold.quantize.block_weights import BlockWeight
from onnxfold.quantize.qdq import DEFAULT_TYPES, OPSET, IntegerTypes, to_integer_products, to_qdq
from onnxfold.statistics.activations import Batches, Range, activation_ranges


def require_quantizable(view: GraphView, blocks: Sequence[BlockWeight] = ()) -> None:
    """Refuse models that int8 makes no sense for, or that onnxruntime's quantiser cannot read."""
    done = next((node for node in (*(block.node for block in blocks), *view.nodes) if is_quantized(node)), None)
    if done is not None:
        raise UnsupportedModelError(
            f"dtype='int8': the model is quantised already, see {done.op_type} '{done.name or node_key(done)}': "
            "give the float32 model"
        )
    weights = linear_weights(view)
    if not weights:
        raise UnsupportedModelError(
            "dtype='int8': there is nothing to quantise, since no Conv, Gemm or MatMul of the main graph has constant "
            "weights"
        )
    other = next((name for name in weights if view.weight_type(name) != TensorProto.FLOAT), None)
    if other is not None:
        type_name = TensorProto.DataType.Name(view.weight_type(other)).lower()
        raise UnsupportedModelError(
            f"dtype='int8' quantises float32 models, and weight '{other}' is {type_name}: convert the model to float32"
        )


def require_small(view: GraphView) -> None:
    """Refuse a model of over 2 GB."""
    size = weight_bytes(view)
    if size > PROTOBUF_LIMIT:
        raise UnsupportedModelError(
            f"dtype='int8': the model has {show_bytes(size)} of float32 weights, and onnxruntime's quantiser takes "
            f"{show_bytes(PROTOBUF_LIMIT)}: fold it further, or fold without dtype"
        )


#: Normalisations become part of the layers before them.
PREPARE = Pipeline((FuseBatchNorm(), RemoveUnused()))

#: Copies of all weights that are held at once: two float models, and the quantiser's of both kinds.
_COPIES = 4
#: Endings of the names that the quantiser gives.
_MADE = ("_scale", "_zero_point", "_quantized", "_quantized_scale", "_quantized_zero_point")
#: A larger share of weights that stays in float32 is noted.
_NOTED = 0.01


@dataclass(frozen=True, eq=False)
class Quantized:
    """A quantised model."""

    view: GraphView  # the model, QDQ ONNX or with integer products
    weights: int  # entries of weights that are stored as integers
    float_weights: int  # entries of weights that are not
    notes: tuple[str, ...] = field(default=())  # what stays in float32, and which operator set was converted


def quantize_int8(
    view: GraphView, inputs: Batches | None, progress: Progress = silent, types: IntegerTypes = DEFAULT_TYPES
) -> Quantized:
    """Quantise a float32 model, weights per channel, activations by their ranges."""
    require_small(view)
    memory.require(_COPIES * weight_bytes(view), "quantising the model")
    progress("prepare quantisation", 0, 0)
    prepared = view.copy()
    PREPARE(prepared)
    _name_nodes(prepared)
    _free_names(prepared)
    model, notes = _convert_opset(to_model(prepared))
    ranges = None if inputs is None else _ranges(model, inputs, progress)
    progress("quantize", 0, 0)
    # Loading sorts the nodes.
    made = to_integer_products(model, types) if ranges is None else load(to_qdq(model, ranges, types))
    made.drop_lost_infos()
    made.drop_inferable_infos()
    made.notes = list(view.notes)
    made.assume(dict(view.input_shapes))
    stored = sum(made.weight_size(name) for name in dequantized_tensors(made.nodes) if made.is_weight(name))
    left = count_parameters(made) - stored
    if left > _NOTED * (stored + left):
        notes += (f"{left:,} of {stored + left:,} weights stay in float32: {_readers_of_floats(made)}",)
    return Quantized(made, stored, left, notes)


def _ranges(model: ModelProto, inputs: Batches, progress: Progress) -> dict[str, Range]:
    try:
        return activation_ranges(load(model), inputs, progress)
    except VerificationError as error:
        raise VerificationError(f"dtype='int8': the model cannot be calibrated: {error}") from None


def _name_nodes(view: GraphView) -> None:
    """Give nodes without a name, or with that of another one, a name: the quantiser tells them apart by it."""
    names = Counter(node.name for node in view.nodes)
    fresh = (f"node_{i}" for i in count())
    replaced: dict[str, NodeProto] = {}
    for node in view.nodes:
        if node.name and names[node.name] == 1:
            continue
        named = NodeProto()
        named.CopyFrom(node)
        named.name = next(name for name in fresh if name not in names)
        replaced[node_key(node)] = named
    view.substitute(replaced)


def _free_names(view: GraphView) -> None:
    """Rename weights whose names the quantiser will give to the tensors that it adds."""
    inside = {name for node in view.nodes for name in captured_names(node)}
    tensors = {*view.weights, *view.input_names, *(name for node in view.nodes for name in node.output)}
    fresh: dict[str, str] = {}
    for name in view.weights:
        stems = {name.removesuffix(ending) for ending in _MADE} - {name}
        if stems & tensors and name not in inside:
            fresh[name] = next(view.fresh_names(f"{name}_of_model"))
    view.rename_inputs(fresh)
    view.rename_weights(lambda name: fresh.get(name, name))


def _convert_opset(model: ModelProto) -> tuple[ModelProto, tuple[str, ...]]:
    """Return a model in an operator set that has scales per channel, and a note on the conversion."""
    version = max(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    if version >= OPSET:
        return model, ()
    try:
        converted = onnx.version_converter.convert_version(model, OPSET)
    except Exception as error:  # the converter raises what its C++ code raises
        text = " ".join(str(error).split())[:200]
        raise UnsupportedModelError(
            f"dtype='int8' needs operator set {OPSET}, and onnx cannot convert the model from {version}: {text}"
        ) from None
    return converted, (f"the operator set was converted from {version} to {OPSET}, which int8 needs",)


def _readers_of_floats(view: GraphView) -> str:
    """Return the operators whose weights are not quantised, in words."""
    kinds = {node.op_type for name in view.float_weight_names() for node in view.consumers(name)}
    kinds -= {"QuantizeLinear", "DequantizeLinear"}
    return f"those of {', '.join(sorted(kinds)) or 'bodies'}"
