"""Networks beside each other compute what each of them computes, whatever forms they were written in."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, version_converter

import onnxfold
from onnxfold.errors import ConfigError, UnsupportedModelError
from onnxfold.folding.networks.joined_model import join_models
from onnxfold.graph.files.load import load
from onnxfold.graph.view import GraphView
from onnxfold.passes.join import join
from onnxfold.passes.join.join import open_networks
from testing.models import ALL_MODELS, mlp, random_input, run
from testing.quick import quick_fold
from tests.export_forms import FORMS

#: Where channels are lost before the head, or where constants for all channels differ.
REFUSED = {"two_outputs", "prelu_net", "gemm_variants"}
TOLERANCE = 1e-5


def outputs_of(model: onnx.ModelProto, seed: int = 5) -> list[np.ndarray]:
    return run(model, random_input(model, seed))


def joined(how: str, parts: list[list[np.ndarray]]) -> list[np.ndarray]:
    if how == "join":
        return [np.concatenate(one, axis=1) for one in zip(*parts, strict=True)]
    return [one[0] if how == "first" else np.mean(one, axis=0) for one in zip(*parts, strict=True)]


def assert_near(got: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for a, b in zip(got, expected, strict=True):
        assert a.shape == b.shape
        assert np.abs(a - b).max() <= TOLERANCE * np.abs(b).max()


@pytest.mark.parametrize("name", sorted(set(ALL_MODELS) - REFUSED))
def test_joined_networks_give_the_outputs_of_both(name: str) -> None:
    models = [ALL_MODELS[name](seed) for seed in (0, 1)]
    for how in ("join", "average", "first"):
        found = join_models(models, how)
        expected = joined(how, [outputs_of(model) for model in models])
        assert_near(outputs_of(found.model), expected)
        assert_near(outputs_of(found.exact), expected)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_stacked_is_named_in_both(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"of model 1 and \w+ '\w+' of model 2 cannot be stacked"):
        join_models([ALL_MODELS[name](0), ALL_MODELS[name](1)])


def test_at_the_full_width_zeros_are_not_stored() -> None:
    models = [ALL_MODELS["residual"](seed) for seed in (0, 1)]
    result = onnxfold.merge(models, 2.0, heads="join")
    assert_near(outputs_of(result.model), joined("join", [outputs_of(model) for model in models]))
    stored = sum(numpy_helper.to_array(t).size for t in result.model.graph.initializer if len(t.dims) == 4)
    assert stored == 2 * sum(numpy_helper.to_array(t).size for t in models[0].graph.initializer if len(t.dims) == 4)
    assert result.report.before.parameters == sum(onnxfold.api.measure(model).parameters for model in models)


# Calls of functions compute something else there, which happens to be the same.
@pytest.mark.parametrize("form", sorted(set(FORMS) - {"model_functions"}))
def test_networks_correspond_in_any_form(form: str) -> None:
    first, second = ALL_MODELS["flatten_conv"](0), ALL_MODELS["flatten_conv"](1)
    found = join_models([first, FORMS[form](second)], "join")
    assert_near(outputs_of(found.model), joined("join", [outputs_of(first), outputs_of(second)]))


def _swapped(model: onnx.ModelProto) -> onnx.ModelProto:
    """Sums are written the other way round, and everything is called otherwise."""
    for node in model.graph.node:
        if node.op_type == "Add":
            node.input[:] = list(node.input)[::-1]
        node.name = f"other_{node.name}"
        node.input[:] = [name if name == "x" else f"other_{name}" for name in node.input]
        node.output[:] = [name if name == "y" else f"other_{name}" for name in node.output]
    for tensor in model.graph.initializer:
        tensor.name = f"other_{tensor.name}"
    del model.graph.value_info[:]
    return model


def _newer(model: onnx.ModelProto) -> onnx.ModelProto:
    return version_converter.convert_version(model, model.opset_import[0].version + 1)


def _fused(model: onnx.ModelProto) -> onnx.ModelProto:
    """BatchNormalizations are gone; what follows has biases."""
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    nodes = list(model.graph.node)
    for norm in [node for node in nodes if node.op_type == "BatchNormalization"]:
        conv = next(node for node in nodes if norm.input[0] in node.output)
        gamma, beta, mean, variance = (weights[name] for name in norm.input[1:])
        scale = gamma / np.sqrt(variance + 1e-5)
        bias = weights[conv.input[2]] if len(conv.input) > 2 else 0.0
        weights[conv.input[1]] = (weights[conv.input[1]] * scale[:, None, None, None]).astype(np.float32)
        weights[f"{conv.name}_fused"] = ((bias - mean) * scale + beta).astype(np.float32)
        conv.input[:] = [*conv.input[:2], f"{conv.name}_fused"]
        conv.output[:] = norm.output
        nodes.remove(norm)
    used = {name for node in nodes for name in node.input}
    kept = [numpy_helper.from_array(v, name) for name, v in weights.items() if name in used]
    graph = helper.make_graph(nodes, "fused", model.graph.input, model.graph.output, kept)
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


@pytest.mark.parametrize("change", [_swapped, _newer, _fused])
def test_networks_correspond_by_structure(change: Callable[[onnx.ModelProto], onnx.ModelProto]) -> None:
    first, second = ALL_MODELS["residual"](0), ALL_MODELS["residual"](1)
    expected = joined("join", [outputs_of(first), outputs_of(second)])
    assert_near(outputs_of(join_models([first, change(ALL_MODELS["residual"](1))], "join").model), expected)


def test_networks_may_have_other_widths() -> None:
    first = ALL_MODELS["depthwise_separable"](0)
    narrow = quick_fold(ALL_MODELS["depthwise_separable"](1), channel_ratio=0.4, method="fold-naive").model
    for models in ([first, narrow], [narrow, first]):
        expected = joined("join", [outputs_of(model) for model in models])
        assert_near(outputs_of(onnxfold.merge(models, 2.0, heads="join").model), expected)


def test_three_networks() -> None:
    models = [ALL_MODELS["concat_net"](seed) for seed in (0, 1, 2)]
    result = onnxfold.merge(models, 3.0)
    assert_near(outputs_of(result.model), joined("average", [outputs_of(model) for model in models]))
    narrow = onnxfold.merge(models, 1.0, method="fold-naive")
    assert [g.folded_width for g in narrow.report.groups] == [g.width // 3 for g in narrow.report.groups]


def test_joined_classes_are_named() -> None:
    models = [ALL_MODELS["mlp"](seed) for seed in (0, 1)]
    labels = [f"class {i}" for i in range(10)]
    result = onnxfold.merge(models, 2.0, heads="join", labels=labels)
    assert '"class 9"' in next(p.value for p in result.model.metadata_props if p.key == "labels")
    with pytest.raises(ConfigError, match="3 labels were given, and the merged network has 10 classes"):
        onnxfold.merge(models, 2.0, heads="join", labels=labels[:3])


def test_other_layouts_are_refused_with_both_nodes() -> None:
    with pytest.raises(
        UnsupportedModelError, match=r"Relu 'relu_0' of model 2 computes '\w+', which is an input in model 1"
    ):
        join_models([mlp(0), mlp(1, widths=(12, 10, 8))])
    strided = ALL_MODELS["chain_conv"](1)
    next(a for a in strided.graph.node[0].attribute if a.name == "strides").ints[:] = [2, 2]
    with pytest.raises(UnsupportedModelError, match=r"'strides' is left out in one and .2, 2. in the other"):
        join_models([ALL_MODELS["chain_conv"](0), strided])


def test_other_inputs_are_refused() -> None:
    wide = ALL_MODELS["chain_conv"](1)
    wide.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 16
    del wide.graph.value_info[:]
    with pytest.raises(UnsupportedModelError, match=r"has the shape \?x3x8x8, and 'x' of model 2 \?x3x16x8"):
        join_models([ALL_MODELS["chain_conv"](0), wide])


def test_outputs_of_other_lengths_have_no_mean() -> None:
    models = [mlp(0), mlp(1)]
    weight, bias = models[1].graph.initializer[-2:]
    for tensor in (weight, bias):
        values = numpy_helper.to_array(tensor)
        axis = values.shape.index(5)
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values.take(range(3), axis)), tensor.name))
    models[1].graph.output[0].type.tensor_type.shape.dim[1].dim_value = 3
    assert_near(outputs_of(join_models(models).model), joined("join", [outputs_of(model) for model in models]))
    with pytest.raises(ConfigError, match="output 'y' has 5 and 3 entries in the networks"):
        join_models(models, "average")


def test_too_many_networks_are_refused_before_they_are_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    model, opened = mlp(0), 0

    def counted(source: onnx.ModelProto) -> GraphView:
        nonlocal opened
        opened += 1
        return load(source)

    monkeypatch.setattr(join, "load", counted)
    with pytest.raises(ConfigError, match=r"300 networks are too many: .* up to 12 channels 154 can be merged at once"):
        open_networks([model] * 300)
    assert opened == 1
    networks, matches, notes = open_networks([model] * 9)
    assert (len(networks), len(matches), notes) == (9, 9, ())
