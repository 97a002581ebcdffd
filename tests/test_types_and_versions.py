"""Float types other than float32, old and new operator sets, symbolic sizes."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from onnxfold.graph.files.load import load
from onnxfold.statistics.activations import Activations
from onnxfold.statistics.moments import ChannelMoments
from onnxfold.statistics.observe import match_statistics
from testing import models
from testing.quick import quick_fold

TYPES = {
    "float16": (TensorProto.FLOAT16, np.float16),
    "bfloat16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
    "double": (TensorProto.DOUBLE, np.float64),
}


def _as_type(model: onnx.ModelProto, elem_type: int, dtype: object) -> onnx.ModelProto:
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            values = numpy_helper.to_array(tensor).astype(dtype)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    for info in [*model.graph.input, *model.graph.output]:
        info.type.tensor_type.elem_type = elem_type
    del model.graph.value_info[:]
    return model


@pytest.mark.parametrize("name", ["mlp_bn", "residual"])
@pytest.mark.parametrize("kind", TYPES)
def test_weights_keep_their_type(kind: str, name: str) -> None:
    elem_type, dtype = TYPES[kind]
    model = _as_type(models.ALL_MODELS[name](0), elem_type, dtype)
    reference = quick_fold(models.ALL_MODELS[name](0), 0.4, allocation="uniform")
    result = quick_fold(model, 0.4, allocation="uniform")
    folded = result.model
    floats = {t.data_type for t in folded.graph.initializer if t.data_type not in (TensorProto.INT64,)}
    assert floats == {elem_type}
    assert [o.type.tensor_type.elem_type for o in folded.graph.output] == [elem_type] * len(folded.graph.output)
    assert [g.folded_width for g in result.report.groups] == [g.folded_width for g in reference.report.groups]
    assert result.report.fidelity is not None  # it ran, where necessary as a float32 twin
    if kind == "bfloat16":  # which has no kernels: a twin's latency is another model's
        assert result.report.latency is None


def test_statistics_that_float16_cannot_hold_are_not_taken() -> None:
    """A detector was run with infinite variances, and 'became NaN in the fold'."""
    model = _as_type(models.ALL_MODELS["residual"](0), *TYPES["float16"])
    view = load(model)
    walk = Activations(
        view, [{"x": 2000 * np.ones((2, 3, 8, 8), np.float16) * np.array([[[[1]]], [[[-1]]]], np.float16)}]
    )
    norm = next(node for node in walk.walk() if node.op_type == "BatchNormalization" or walk.run(node))
    assert ChannelMoments(walk.values[norm.input[0]], 1).variance.max() > np.finfo(np.float16).max
    before = {name: view.weight(name) for name in norm.input[1:]}
    match_statistics(walk, norm)
    for name, values in before.items():
        np.testing.assert_array_equal(view.weight(name), values)


@pytest.mark.parametrize("version", [7, 9, 11, 13, 17, 19, 21])
@pytest.mark.parametrize("name", ["chain_conv", "residual", "flatten_conv", "concat_net", "squeeze_excite"])
def test_operator_sets(name: str, version: int) -> None:
    converted = models.ALL_MODELS[name](0)
    converted.opset_import[0].version = version  # operators whose meaning for these attributes never changed
    onnx.checker.check_model(converted, full_check=True)
    result = quick_fold(converted, channel_ratio=0.5)
    assert all(g.folded_width == g.width // 2 for g in result.report.groups if g.width % 2 == 0)
    assert result.report.fidelity is not None


def test_old_ir_version_with_weights_listed_as_inputs() -> None:
    model = models.residual(0)
    model.ir_version = 3
    for tensor in model.graph.initializer:
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    result = quick_fold(model, 0.4)
    assert [i.name for i in result.model.graph.input] == ["x"]
    assert result.report.sparsity == pytest.approx(0.4, abs=0.02)


def test_input_shapes_open_a_model_of_unknown_sizes() -> None:
    """A Reshape that merges H and W cannot be followed while they are unknown."""
    model = models.flatten_conv(0)
    shape = model.graph.input[0].type.tensor_type.shape
    known = [d.dim_value for d in shape.dim]
    for i in (2, 3):
        shape.dim[i].dim_param = f"size{i}"
    del model.graph.value_info[:]
    sizes = (1, *known[1:])
    with_shapes = onnxfold.inspect(model, input_shapes={"x": sizes})
    assert len(with_shapes) >= len(onnxfold.inspect(model))
    folded = quick_fold(model, channel_ratio=0.5, input_shapes={"x": sizes}).model
    dims = folded.graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_param for d in dims][2:] == ["size2", "size3"], "the assumption must not be written into the model"
