"""Operators that keep channels zero, or the same whatever the input is."""

from onnx import NodeProto

#: Operators that compute every channel from itself alone, and zeros from zeros.
KEEP_ZERO = frozenset({
    "Abs", "AveragePool", "Cast", "Celu", "Dropout", "Elu", "Erf", "Flatten", "Gelu", "GlobalAveragePool",
    "GlobalMaxPool", "HardSwish", "Identity", "LeakyRelu", "MaxPool", "Mish", "Mul", "Neg", "PRelu", "ReduceMax",
    "ReduceMean", "ReduceSum", "Reshape", "Selu", "Sign", "Softsign", "Sqrt", "Squeeze", "Sum", "Tanh", "Transpose",
    "Unsqueeze",
})  # fmt: skip
#: Operators that compute every channel from itself alone.
PASS = KEEP_ZERO | {
    "Add", "BatchNormalization", "Clip", "Concat", "Div", "Exp", "Expand", "HardSigmoid", "Pad", "Pow", "Relu",
    "Resize", "Sigmoid", "Slice", "Softplus", "Split", "Sub", "Where",
}  # fmt: skip
PRODUCERS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


def is_sum(node: NodeProto) -> bool:
    """Whether a node adds its inputs."""
    return node.op_type == "Add"
