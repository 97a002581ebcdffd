"""QDQ ONNX, and products of integers whose activations are quantised as they are read, by onnxruntime's quantiser.

Weights become int8, one scale per output channel, and keep to 7 bits: x86 CPUs without VNNI instructions add products
of pairs in 16 bits, which 8 bits overflow. So a file gives the same answers on every CPU. Activations are uint8, for
which onnxruntime's CPU kernels are written. benchmarks/equal_bytes.md measures both against the other choices.
"""

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.files.load import load
from onnxfold.graph.nodes import DEFAULT_DOMAINS, attr_float, attr_int
from onnxfold.graph.view import GraphView
from onnxfold.statistics.activations import Range

#: Operators on integers: those with weights, and those between them that have integer kernels or move values only.
#: Normalisations and softmax stay in float32, because no CPU kernel of them is faster in integers.
OPERATORS = (
    "Conv", "ConvTranspose", "Gemm", "MatMul", "Gather", "Add", "Mul", "Relu", "Clip", "LeakyRelu", "Sigmoid",
    "MaxPool", "AveragePool", "GlobalAveragePool", "Concat", "Split", "Pad", "Resize", "Reshape", "Flatten", "Squeeze",
    "Unsqueeze", "Transpose", "Slice",
)  # fmt: skip


@dataclass(frozen=True)
class IntegerTypes:
    """The integer types of weights and activations."""

    weight_bits: int = 7  # bits of an int8 weight that are used
    signed_activations: bool = False  # whether activations are int8, else uint8


DEFAULT_TYPES = IntegerTypes()

#: The first operator set in which DequantizeLinear takes a scale per channel.
OPSET = 13

#: An entry of the metadata by which the quantiser knows that the types of all tensors are declared.
_TYPED = ("onnx.infer", "onnxruntime.quant")
_MODULE = "onnxruntime/quantization"


def to_qdq(model: ModelProto, ranges: Mapping[str, Range], types: IntegerTypes = DEFAULT_TYPES) -> ModelProto:
    """Return a float32 model as QDQ ONNX."""
    from onnxruntime.quantization import QDQQuantizer, QuantType
    from onnxruntime.quantization.calibrate import CalibrationMethod, TensorsData

    shapes = {weight.name: list(weight.dims) for weight in model.graph.initializer}
    empty = {i.name for i in model.graph.input if i.type.tensor_type.elem_type == TensorProto.FLOAT} - {
        *shapes,
        *ranges,
    }

    def quantizer(typed: ModelProto) -> Any:
        return QDQQuantizer(
            typed,
            **weight_options(types),
            activation_qType=QuantType.QInt8 if types.signed_activations else QuantType.QUInt8,
            tensors_range=TensorsData(CalibrationMethod.MinMax, dict(ranges)),
            nodes_to_exclude=[
                node.name for node in model.graph.node if _is_excluded(node, shapes) or not empty.isdisjoint(node.input)
            ],
            op_types_to_quantize=list(OPERATORS),
            extra_options={},
        )

    return run_quantiser(_declare_types(model, ranges), quantizer)


def weight_options(types: IntegerTypes) -> dict[str, Any]:
    """Return the options of every quantiser that are about weights."""
    from onnxruntime.quantization import QuantType

    return {
        "per_channel": True,
        "reduce_range": types.weight_bits < 8,
        "weight_qType": QuantType.QInt8,
        "nodes_to_quantize": [],
    }


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
    kept = [prop for prop in quantized.metadata_props if (prop.key, prop.value) != _TYPED]
    del quantized.metadata_props[:]
    quantized.metadata_props.extend(kept)
    return quantized


def _declare_types(model: ModelProto, ranges: Iterable[str]) -> ModelProto:
    """Return a model that declares the types of tensors: those with a range are float32. More need not be known."""
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ranges]
    parts = {field.name: value for field, value in model.graph.ListFields() if field.name != "value_info"}
    rest = {field.name: value for field, value in model.ListFields() if field.name != "graph"}
    return ModelProto(graph=GraphProto(**parts, value_info=infos), **rest)


def _is_excluded(node: NodeProto, shapes: Mapping[str, Sequence[int]]) -> bool:
    """Whether a node stays in float32.

    These are nodes of other domains, those whose bias has no scale of its own per channel (a ConvTranspose of several
    groups, a Gemm whose bias is no vector), and a Gemm with factors, which onnxruntime's integer kernel ignores.
    """
    if node.op_type == "ConvTranspose":
        return attr_int(node, "group", 1) > 1
    if node.op_type != "Gemm":
        return node.domain not in DEFAULT_DOMAINS
    if attr_float(node, "alpha", 1.0) != 1.0 or attr_float(node, "beta", 1.0) != 1.0:
        return True
    bias = node.input[2] if len(node.input) > 2 else ""
    vector = shapes.get(node.input[1], [0, 0])[0 if attr_int(node, "transB", 0) else 1]
    return bool(bias) and list(shapes.get(bias, ())) != [vector]


_LOGGER = logging.getLogger(__name__)


class _Caught(logging.Filter):
    """Filter that keeps lines on the root logger from a package, where onnxruntime's quantiser logs."""

    def __init__(self, package: str) -> None:
        super().__init__()
        self._package = package
        self.lines: list[str] = []

    def filter(self, record: logging.LogRecord) -> bool:
        if self._package not in record.pathname.replace("\\", "/"):
            return True
        self.lines.append(record.getMessage())
        return False


@contextlib.contextmanager
def quiet(package: str) -> Iterator[None]:
    """Send what a library prints, warns of, and logs on the root logger to the log's debug level."""
    root, caught, printed = logging.getLogger(), _Caught(package), io.StringIO()
    handler = logging.NullHandler()  # without any handler, a first message would set one up that prints
    root.addFilter(caught)
    root.addHandler(handler)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            warnings.simplefilter("ignore")
            yield
    finally:
        root.removeHandler(handler)
        root.removeFilter(caught)
        for line in (*caught.lines, *printed.getvalue().splitlines()):
            _LOGGER.debug("%s: %s", package, line)


#: A Gemm without factors is a product, too.
INTEGER_OPERATORS = ("MatMul", "Gather")


def to_integer_products(model: ModelProto, types: IntegerTypes = DEFAULT_TYPES) -> GraphView:
    """Return a float32 model with products of integers; takes and raises what `to_qdq` does without ranges.

    Every product of an activation with a constant matrix becomes DynamicQuantizeLinear and MatMulInteger, which
    onnxruntime computes as one; tables of words become int8, too. Bits and scales of weights are those of
    :func:`to_qdq`. All else stays in float32.
    """
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization.onnx_quantizer import ONNXQuantizer
    from onnxruntime.quantization.quant_utils import QuantizationMode

    def quantizer(typed: ModelProto) -> Any:
        quantizer_of_model = ONNXQuantizer(
            typed,
            **weight_options(types),
            mode=QuantizationMode.IntegerOps,
            static=False,
            activation_qType=QuantType.QUInt8,
            tensors_range=None,
            nodes_to_exclude=[],
            op_types_to_quantize=list(INTEGER_OPERATORS),
            extra_options={"MatMulConstBOnly": True, "DefaultTensorType": TensorProto.FLOAT},
        )
        quantizer_of_model.model.replace_gemm_with_matmul()
        return quantizer_of_model

    copy = ModelProto()
    copy.CopyFrom(model)
    view = load(run_quantiser(copy, quantizer))
    _share_matrices(view)
    return view


def _share_matrices(view: GraphView) -> None:
    """Let what still reads the floats of a matrix of integers dequantise these: a matrix is stored once."""
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
