"""A float32 twin of a model whose float type onnxruntime's CPU kernels lack."""

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, TensorProto, numpy_helper

from onnxfold.graph.tensors import FLOAT_TYPES

_OTHER_FLOATS = FLOAT_TYPES - {TensorProto.FLOAT}


def float32_twin(model: ModelProto) -> ModelProto:
    """Return a copy in which every float16, bfloat16 and double tensor is float32.

    Only the types change: weights, declared inputs, outputs and intermediate values, targets of Cast, and constants in
    attributes. The twin computes what the model would, in another precision.
    """
    twin = ModelProto()
    twin.CopyFrom(model)
    _convert_graph(twin.graph)
    return twin


def has_other_floats(model: ModelProto) -> bool:
    """Whether any weight or declared tensor has a float type other than float32."""
    infos = [*model.graph.input, *model.graph.output]
    types = {i.type.tensor_type.elem_type for i in infos} | {t.data_type for t in model.graph.initializer}
    return bool(types & _OTHER_FLOATS)


def _convert_graph(graph: GraphProto) -> None:
    for tensor in graph.initializer:
        _convert_tensor(tensor)
    for info in [*graph.input, *graph.output, *graph.value_info]:
        if info.type.tensor_type.elem_type in _OTHER_FLOATS:
            info.type.tensor_type.elem_type = TensorProto.FLOAT
    for node in graph.node:
        for attr in node.attribute:
            if attr.name in ("to", "dtype") and attr.i in _OTHER_FLOATS:
                attr.i = TensorProto.FLOAT
            elif attr.type == onnx.AttributeProto.TENSOR:
                _convert_tensor(attr.t)
            elif attr.type == onnx.AttributeProto.GRAPH:
                _convert_graph(attr.g)


def _convert_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in _OTHER_FLOATS:
        values = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
