"""Products of integers whose activations are quantised as they are read, by onnxruntime's quantiser.

Every product of an activation with a constant matrix becomes DynamicQuantizeLinear and MatMulInteger, which
onnxruntime computes as one; tables of words become int8, too. Bits and scales of weights are those of
:mod:`onnxfold.quantize.qdq`. All else stays in float32.
"""

from onnx import ModelProto, TensorProto, helper

from onnxfold.graph.nodes import captured_names
from onnxfold.quantize.qdq import DEFAULT_TYPES, IntegerTypes, by_quantiser

#: A Gemm without factors is a product, too.
OPERATORS = ("MatMul", "Gather")


def to_integer_products(model: ModelProto, types: IntegerTypes = DEFAULT_TYPES) -> ModelProto:
    """Return a float32 model with products of integers; takes, returns and raises what `to_qdq` does without ranges."""
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization.onnx_quantizer import ONNXQuantizer
    from onnxruntime.quantization.quant_utils import QuantizationMode

    def made(typed: ModelProto) -> ModelProto:
        quantizer = ONNXQuantizer(
            typed,
            per_channel=True,
            reduce_range=types.weight_bits < 8,
            mode=QuantizationMode.IntegerOps,
            static=False,
            weight_qType=QuantType.QInt8,
            activation_qType=QuantType.QUInt8,
            tensors_range=None,
            nodes_to_quantize=[],
            nodes_to_exclude=[],
            op_types_to_quantize=list(OPERATORS),
            extra_options={"MatMulConstBOnly": True, "DefaultTensorType": TensorProto.FLOAT},
        )
        quantizer.model.replace_gemm_with_matmul()
        quantizer.quantize_model()
        found: ModelProto = quantizer.model.model
        return found

    found = by_quantiser(model, made)
    _share(found)
    return found


def _share(model: ModelProto) -> None:
    """Let what still reads the floats of a matrix of integers dequantise these: a matrix is stored once."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    read = {name for node in model.graph.node for name in (*node.input, *captured_names(node))}
    read |= {output.name for output in model.graph.output}
    for name in [name for name in stored if f"{name}_quantized" in stored]:
        tensor = stored[name]
        if name in read:
            axis = _scaled_axis(model, name)
            inputs = [f"{name}{end}" for end in ("_quantized", "_scale", "_zero_point")]
            node = helper.make_node("DequantizeLinear", inputs, [name], f"{name}_DequantizeLinear", axis=axis)
            model.graph.node.append(node)
        model.graph.initializer.remove(tensor)


def _scaled_axis(model: ModelProto, name: str) -> int:
    """Return the axis of a weight along which it has a scale each; 0 where there is one for all."""
    (scale,) = (tensor for tensor in model.graph.initializer if tensor.name == f"{name}_scale")
    (values,) = (tensor for tensor in model.graph.initializer if tensor.name == f"{name}_quantized")
    return len(values.dims) - 1 if scale.dims else 0
