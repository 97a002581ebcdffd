"""Exact duplicates: all that were planted, and nothing else."""

from itertools import product

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfold.channels import find_groups
from onnxfold.cluster.duplicates import find_duplicates
from onnxfold.cluster.partition import renumber
from onnxfold.graph.files.load import load
from testing.graph_builder import GraphBuilder
from testing.models import ALL_MODELS
from testing.rule_models.table import RULE_MODELS
from testing.widening.widen import copied_units, widen


def _classes(model: onnx.ModelProto, seed: int = 0) -> dict[str, list[int]]:
    view = load(model)
    groups = find_groups(view).groups
    return {g.name: labels.tolist() for g, labels in zip(groups, find_duplicates(view, groups, seed=seed), strict=True)}


def _cast(model: onnx.ModelProto, dtype: type[np.floating]) -> onnx.ModelProto:
    """Return the model with its weights in another float type."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(dtype), tensor.name))
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.elem_type = elem_type
    return model


def _changed(model: onnx.ModelProto, name: str, index: tuple[int, ...], factor: float) -> onnx.ModelProto:
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for tensor in result.graph.initializer:
        if tensor.name == name:
            values = numpy_helper.to_array(tensor).copy()
            values[index] *= factor
            tensor.CopyFrom(numpy_helper.from_array(values, name))
    return result


#: Every model goes two ways that differ in both, and every three models go all ways.
WAYS = list(product(["forward", "backward", "random"], [False, True]))
CASES = [(name, *WAYS[(i + step) % 6]) for i, name in enumerate(ALL_MODELS) for step in (0, 3)]


@pytest.mark.parametrize(("name", "order", "per_row"), CASES)
def test_exactly_the_planted_classes(name: str, order: str, per_row: bool) -> None:
    model = ALL_MODELS[name](1)
    wide, _ = widen(model, 1, None, per_row, order)  # type: ignore[arg-type]
    planted = {group: renumber(source)[0].tolist() for group, source in copied_units(model, 1, None).items()}
    assert _classes(wide) == planted


@pytest.mark.parametrize("name", ALL_MODELS)
@pytest.mark.parametrize("seed", range(2))
def test_none_in_random_networks(name: str, seed: int) -> None:
    assert all(labels == list(range(len(labels))) for labels in _classes(ALL_MODELS[name](seed), seed).values())


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
@pytest.mark.parametrize("name", ["chain_conv", "residual", "mlp_bn", "flatten_conv"])
def test_weights_of_another_type(name: str, dtype: type[np.floating]) -> None:
    """Parts of a column that are rounded to half precision do not quite add up; copies are found all the same."""
    model = _cast(ALL_MODELS[name](1), dtype)
    wide, _ = widen(model, 1, 2, per_row=True, order="backward")
    planted = {group: renumber(source)[0].tolist() for group, source in copied_units(model, 1, 2).items()}
    assert _classes(wide) == planted
    assert all(labels == list(range(len(labels))) for labels in _classes(model).values())


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("bias", [None, (-1,)], ids=["no bias", "bias"])
def test_wide_layers_of_coarse_types(bias: tuple[int, ...] | None, dtype: type) -> None:
    """Among many channels, some always lie within rounding of each other in any one projection."""
    g = GraphBuilder("net", 0, (64,))
    h = g.relu(g.gemm(g.relu(g.gemm("x", 200, bias=bias)), 200, bias=bias))
    g.output(g.gemm(h, 5))
    model = _cast(g.build(), dtype)
    assert all(labels == list(range(200)) for labels in _classes(model).values())
    wide, _ = widen(model, 1, 2, per_row=True, order="backward")
    planted = {group: renumber(source)[0].tolist() for group, source in copied_units(model, 1, 2).items()}
    assert _classes(wide) == planted


@pytest.mark.parametrize(
    ("weight", "index"),
    [
        ("conv_1_w", (0, 0, 0, 0)),  # one tap of one filter
        ("bn_1_gamma", (0,)),
        ("bn_1_beta", (0,)),
        ("bn_1_mean", (0,)),
        ("bn_1_var", (0,)),
    ],
)
def test_channels_that_differ_in_one_number_are_different(weight: str, index: tuple[int, ...]) -> None:
    """Another row, or an equal row with another normalisation, is another channel; so are those it feeds."""
    wide, _ = widen(ALL_MODELS["chain_conv"](0), 0)
    before, after = _classes(wide), _classes(_changed(wide, weight, index, 1.01))
    assert after["conv_0"] == before["conv_0"]
    assert max(after["conv_1"]) == max(before["conv_1"]) + 1
    assert after["conv_1"].count(after["conv_1"][0]) == 1


def test_a_different_column_alone_does_not_matter_until_something_is_merged() -> None:
    """What consumers do with a channel says nothing about the channel."""
    wide, _ = widen(ALL_MODELS["mlp"](0), 0)
    changed = _changed(wide, "gemm_2_w", (0, 0), 1.5)
    assert _classes(changed) == _classes(wide)


def test_difference_in_front_spreads() -> None:
    """Copies of a channel whose inputs are no longer equal are no longer equal, and so on down the network."""
    wide, _ = widen(ALL_MODELS["mlp"](0), 0, 2, per_row=True, order="backward")
    changed = _changed(wide, "gemm_0_w", (0, 0), 1.5)
    before, after = _classes(wide), _classes(changed)
    assert max(before["gemm_1"]) + 1 == len(before["gemm_1"]) // 2
    assert max(after["gemm_0"]) == max(before["gemm_0"]) + 1
    assert max(after["gemm_1"]) + 1 == len(after["gemm_1"])


def test_blocks_are_kept_apart() -> None:
    """Equal channels in different blocks of a grouped convolution are not merged."""
    model = ALL_MODELS["grouped_conv"](0)
    weights = {t.name: t for t in model.graph.initializer}
    for name in ("conv_0_w", "conv_0_b"):
        values = numpy_helper.to_array(weights[name]).copy()
        values[6:] = values[:6]  # the second block computes what the first does
        values[1] = values[0]
        weights[name].CopyFrom(numpy_helper.from_array(values, name))
    assert _classes(model)["conv_0"] == [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


def test_integer_parameters_are_compared_exactly() -> None:
    model = RULE_MODELS["BitwiseAnd"]()
    first = next(t for t in model.graph.initializer if t.name == "conv_0_w")
    bias = next(t for t in model.graph.initializer if t.name == "conv_0_b")
    for tensor in (first, bias):
        values = numpy_helper.to_array(tensor).copy()
        values[:2] = values[0]
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    assert _classes(model)["conv_0"] == list(range(6))  # the bits, and the second branch, differ


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_seed_does_not_matter(seed: int) -> None:
    wide, _ = widen(ALL_MODELS["residual"](0), 0, None)
    assert _classes(wide, seed) == _classes(wide, 99)
