"""Quantisation by onnxruntime's quantiser: prepare -> measure ranges -> QDQ; of what reads text, integer products.

Weights become int8, one scale per output channel, and keep to 7 bits: x86 CPUs without VNNI instructions add products
of pairs in 16 bits, which 8 bits overflow. So a file gives the same answers on every CPU. Activations are uint8, for
which onnxruntime's CPU kernels are written. benchmarks/equal_bytes.md measures both against the other choices.

Activations of transformers have a few channels that are a hundred times as large as the others, other ones in every
layer. One range for all texts leaves most values a few steps, so each product takes the range of what it just reads.
"""

import contextlib
import io
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import count
from typing import Any

import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper

from onnxfold.budget.costs.weights import count_parameters
from onnxfold.channels.layers import linear_weights
from onnxfold.config import NOTHING
from onnxfold.config.quantities import show_bytes
from onnxfold.errors import UnsupportedModelError, VerificationError
from onnxfold.graph import nodes
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import PROTOBUF_LIMIT, to_model, weight_bytes
from onnxfold.graph.view import GraphView
from onnxfold.machine import memory
from onnxfold.passes.base import Pipeline
from onnxfold.passes.fusion.fuse_batch_norm import FuseBatchNorm
from onnxfold.passes.normalize.unneeded import RemoveUnused
from onnxfold.progress import Progress, silent
from onnxfold.statistics.activations import Batches, Range, activation_ranges

#: Operators on integers: those with weights, and those between them that have integer kernels or move values only.
#: Normalisations and softmax stay in float32, because no CPU kernel of them is faster in integers.
OPERATORS = (
    "Conv", "ConvTranspose", "Gemm", "MatMul", "Gather", "Add", "Mul", "Relu", "Clip", "LeakyRelu", "Sigmoid",
    "MaxPool", "AveragePool", "GlobalAveragePool", "Concat", "Split", "Pad", "Resize", "Reshape", "Flatten", "Squeeze",
    "Unsqueeze", "Transpose", "Slice",
)  # fmt: skip


#: The first operator set in which DequantizeLinear takes a scale per channel.
OPSET = 13

#: An entry of the metadata by which the quantiser knows that the types of all tensors are declared.
_TYPED = ("onnx.infer", "onnxruntime.quant")
_MODULE = "onnxruntime/quantization"


def to_qdq(model: ModelProto, ranges: Mapping[str, Range], types: Mapping[str, Any] = NOTHING) -> ModelProto:
    """Return a float32 model as QDQ ONNX; `types` are options of the quantiser in place of :func:`type_options`."""
    from onnxruntime.quantization import QDQQuantizer
    from onnxruntime.quantization.calibrate import CalibrationMethod, TensorsData

    shapes = {weight.name: list(weight.dims) for weight in model.graph.initializer}
    floats = {i.name for i in model.graph.input if i.type.tensor_type.elem_type == TensorProto.FLOAT}
    empty = floats - {*shapes, *ranges}

    def quantizer(typed: ModelProto) -> Any:
        excluded = (n for n in model.graph.node if _is_excluded(n, shapes) or not empty.isdisjoint(n.input))
        return QDQQuantizer(
            typed, **{**type_options(), **types}, nodes_to_quantize=[],
            tensors_range=TensorsData(CalibrationMethod.MinMax, dict(ranges)),
            nodes_to_exclude=[node.name for node in excluded], op_types_to_quantize=list(OPERATORS), extra_options={},
        )  # fmt: skip

    # The quantiser asks for the types of tensors with a range, which are float32; more need not be known.
    typed = deepcopy(model)
    nodes.refill(typed.graph.value_info, (helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ranges))
    return run_quantiser(typed, quantizer)


def type_options() -> dict[str, Any]:
    """Return the options of every quantiser that are about types: int8 weights, of 7 bits, and uint8 activations."""
    from onnxruntime.quantization import QuantType

    types = {"weight_qType": QuantType.QInt8, "activation_qType": QuantType.QUInt8}
    return {"per_channel": True, "reduce_range": True, **types}


def run_quantiser(model: ModelProto, quantizer: Callable[[ModelProto], Any]) -> ModelProto:
    """Return a model as one of onnxruntime's quantisers writes it."""
    producer = model.producer_name, model.producer_version
    model.metadata_props.add(key=_TYPED[0], value=_TYPED[1])
    try:
        with quiet(_MODULE):
            running = quantizer(model)
            running.quantize_model()
            quantized: ModelProto = running.model.model
    except Exception as error:  # the quantiser raises whatever it stumbles over
        text = " ".join(str(error).split())[:300] or type(error).__name__
        raise UnsupportedModelError(f"dtype='int8': onnxruntime's quantiser refuses the model: {text}") from None
    quantized.producer_name, quantized.producer_version = producer
    props = quantized.metadata_props
    nodes.refill(props, (prop for prop in props if (prop.key, prop.value) != _TYPED))
    return quantized


def _is_excluded(node: NodeProto, shapes: Mapping[str, Sequence[int]]) -> bool:
    """Whether a node stays in float32: of another domain, or of a bias or factors that integer kernels do not take."""
    if node.op_type == "ConvTranspose":
        return nodes.attr_int(node, "group", 1) > 1
    if node.op_type != "Gemm":
        return node.domain not in nodes.DEFAULT_DOMAINS
    if nodes.attr_float(node, "alpha", 1.0) != 1.0 or nodes.attr_float(node, "beta", 1.0) != 1.0:
        return True
    bias = node.input[2] if len(node.input) > 2 else ""
    vector = shapes.get(node.input[1], [0, 0])[0 if nodes.attr_int(node, "transB", 0) else 1]
    return bool(bias) and list(shapes.get(bias, ())) != [vector]


@contextlib.contextmanager
def quiet(package: str) -> Iterator[None]:
    """Drop what a library prints, warns of, and logs on the root logger."""
    root, printed = logging.getLogger(), io.StringIO()

    def is_of_others(record: logging.LogRecord) -> bool:
        return package not in record.pathname.replace("\\", "/")

    handler = logging.NullHandler()  # without any handler, a first message would set one up that prints
    root.addFilter(is_of_others)
    root.addHandler(handler)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            warnings.simplefilter("ignore")
            yield
    finally:
        root.removeHandler(handler)
        root.removeFilter(is_of_others)


#: A Gemm without factors is a product, too.
INTEGER_OPERATORS = ("MatMul", "Gather")


def to_integer_products(model: ModelProto, types: Mapping[str, Any] = NOTHING) -> GraphView:
    """Return a float32 model with products of integers; takes and raises what `to_qdq` does without ranges.

    Products with constant matrices become DynamicQuantizeLinear and MatMulInteger, which onnxruntime computes as one,
    and tables of words int8. Bits and scales of weights are those of :func:`to_qdq`. All else stays in float32.
    """
    from onnxruntime.quantization.onnx_quantizer import ONNXQuantizer
    from onnxruntime.quantization.quant_utils import QuantizationMode

    def quantizer(typed: ModelProto) -> Any:
        quantizer_of_model = ONNXQuantizer(
            typed, **{**type_options(), **types}, mode=QuantizationMode.IntegerOps, static=False, tensors_range=None,
            nodes_to_quantize=[], nodes_to_exclude=[], op_types_to_quantize=list(INTEGER_OPERATORS),
            extra_options={"MatMulConstBOnly": True, "DefaultTensorType": TensorProto.FLOAT},
        )  # fmt: skip
        quantizer_of_model.model.replace_gemm_with_matmul()
        return quantizer_of_model

    view = load(run_quantiser(deepcopy(model), quantizer))
    # What still reads the floats of a matrix of integers dequantises these: a matrix is stored once.
    behind: list[NodeProto] = []
    double = [name for name in view.weights if view.is_weight(f"{name}_quantized")]
    for name in double:
        if view.consumers(name) or name in view.output_names:
            inputs = [f"{name}{end}" for end in ("_quantized", "_scale", "_zero_point")]
            # A scale per column, or one for all.
            axis = len(view.weights[inputs[0]].shape) - 1 if view.weights[inputs[1]].shape else 0
            behind.append(helper.make_node("DequantizeLinear", inputs, [name], f"{name}_DequantizeLinear", axis=axis))
    view.remove_weights(double)
    view.replace_nodes([*behind, *view.nodes])
    return view


def require_quantizable(view: GraphView, opened: Sequence[NodeProto] = ()) -> None:
    """Refuse models that int8 makes no sense for, or that onnxruntime's quantiser cannot read."""
    done = next((node for node in (*opened, *view.nodes) if nodes.is_quantized(node)), None)
    if done is not None:
        raise UnsupportedModelError(
            f"dtype='int8': the model is quantised already, see {done.op_type} '{done.name or nodes.node_key(done)}': "
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
    notes: tuple[str, ...] = ()  # what stays in float32, and which operator set was converted


def quantize_int8(
    view: GraphView, inputs: Batches | None, progress: Progress = silent, types: Mapping[str, Any] = NOTHING
) -> Quantized:
    """Quantise a float32 model, weights per channel, activations by their ranges."""
    size = weight_bytes(view)
    if size > PROTOBUF_LIMIT:
        raise UnsupportedModelError(
            f"dtype='int8': the model has {show_bytes(size)} of float32 weights, and onnxruntime's quantiser takes "
            f"{show_bytes(PROTOBUF_LIMIT)}: fold it further, or fold without dtype"
        )
    memory.require(_COPIES * size, "quantising the model")
    progress("prepare quantisation", 0, 0)
    prepared = view.copy()
    PREPARE(prepared)
    _name_nodes(prepared)
    _free_names(prepared)
    model, notes = _convert_opset(to_model(prepared))
    try:
        ranges = None if inputs is None else activation_ranges(load(model), inputs, progress)
    except VerificationError as error:
        raise VerificationError(f"dtype='int8': the model cannot be calibrated: {error}") from None
    progress("quantize", 0, 0)
    # Loading sorts the nodes.
    made = to_integer_products(model, types) if ranges is None else load(to_qdq(model, ranges, types))
    made.drop_inferable_infos()
    made.notes = list(view.notes)
    made.assume(dict(view.input_shapes))
    made.pixels = view.pixels
    stored = sum(made.weight_size(name) for name in nodes.dequantized_tensors(made.nodes) if made.is_weight(name))
    left = count_parameters(made) - stored
    if left > _NOTED * (stored + left):
        kinds = {node.op_type for name in made.float_weight_names() for node in made.consumers(name)}
        readers = ", ".join(sorted(kinds - {"QuantizeLinear", "DequantizeLinear"})) or "bodies"
        notes += (f"{left:,} of {stored + left:,} weights stay in float32: those of {readers}",)
    return Quantized(made, stored, left, notes)


def _name_nodes(view: GraphView) -> None:
    """Give nodes without a name, or with that of another one, a name: the quantiser tells them apart by it."""
    names = Counter(node.name for node in view.nodes)
    fresh = (f"node_{i}" for i in count())
    replaced: dict[str, NodeProto] = {}
    for node in view.nodes:
        if node.name and names[node.name] == 1:
            continue
        replaced[nodes.node_key(node)] = named = deepcopy(node)
        named.name = next(name for name in fresh if name not in names)
    view.substitute(replaced)


def _free_names(view: GraphView) -> None:
    """Rename weights whose names the quantiser will give to the tensors that it adds."""
    inside = {name for node in view.nodes for name in nodes.captured_names(node)}
    tensors = {*view.weights, *view.input_names, *(name for node in view.nodes for name in node.output)}
    clashing = (name for name in view.weights if tensors & {name.removesuffix(ending) for ending in _MADE} - {name})
    fresh = {name: view.fresh_name(f"{name}_of_model") for name in clashing if name not in inside}
    view.rename_inputs(fresh)
    view.rename_weights(lambda name: fresh.get(name, name))


def _convert_opset(model: ModelProto) -> tuple[ModelProto, tuple[str, ...]]:
    """Return a model in an operator set that has scales per channel, and a note on the conversion."""
    version = max(o.version for o in model.opset_import if o.domain in nodes.DEFAULT_DOMAINS)
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
