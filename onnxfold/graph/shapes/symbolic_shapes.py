"""Shapes by onnxruntime's symbolic inference, which follows computed shapes further than onnx does; it takes sympy."""

import contextlib
import logging
from collections.abc import Collection, Mapping

from onnx import ModelProto, TensorProto, helper

from onnxfold.graph.shapes.shape_inference import light_model, read_types
from onnxfold.graph.shapes.tensor_types import TensorType
from onnxfold.graph.tensors import Weight


def symbolic_types(model: ModelProto, weights: Mapping[str, Weight], names: Collection[str]) -> dict[str, TensorType]:
    """Return the types that onnxruntime's symbolic inference finds; none without sympy, or where it fails."""
    types: dict[str, TensorType] = {}
    # It is a tool of onnxruntime, with no stable interface, and stops with an assertion at what it does not know.
    with contextlib.suppress(Exception, SystemExit):
        from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference

        logging.getLogger("onnxruntime.tools.symbolic_shape_infer").setLevel(logging.CRITICAL)
        light = _turn_stubs_into_inputs(light_model(model, weights))
        inference = SymbolicShapeInference(2**31 - 1, False, False, 0)
        inference._preprocess(light)
        with contextlib.suppress(Exception):  # what it knows until then holds
            while inference.run_:
                inference._infer_impl()
        types = read_types(inference.out_mp_)
    return {
        name: (elem_type, shape, tuple(s if s in names else "" for s in symbols))
        for name, (elem_type, shape, symbols) in types.items()
        if elem_type
    }


def _turn_stubs_into_inputs(model: ModelProto) -> ModelProto:
    """Return a model whose weights without values are inputs: the tool reads values of weights."""
    stubs = [t for t in model.graph.initializer if t.data_location == TensorProto.EXTERNAL]
    kept = [t for t in model.graph.initializer if t.data_location != TensorProto.EXTERNAL]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    listed = {info.name for info in model.graph.input}
    infos = (helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in stubs if t.name not in listed)
    model.graph.input.extend(infos)
    return model
