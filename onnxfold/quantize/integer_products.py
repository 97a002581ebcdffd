"""Products of integers whose activations are quantised as they are read, by onnxruntime's quantiser.

Every product of an activation with a constant matrix becomes DynamicQuantizeLinear and MatMulInteger, which
onnxruntime computes as one; tables of words become int8, too. Bits and scales of weights are those of
:mod:`onnxfold.quantize.qdq`. All else stays in float32.
"""

from typing import Any

from onnx import ModelProto, NodeProto, TensorProto, helper

from onnxfold.graph.files.load import load
from onnxfold.graph.view import GraphView
from onnxfold.quantize.qdq import DEFAULT_TYPES, IntegerTypes, run_quantiser, weight_options

#: A Gemm without factors is a product, too.
OPERATORS = ("MatMul", "Gather")


def to_integer_products(model: ModelProto, types: IntegerTypes = DEFAULT_TYPES) -> GraphView:
    """Return a float32 model with products of integers; takes and raises what `to_qdq` does without ranges."""
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
            op_types_to_quantize=list(OPERATORS),
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
