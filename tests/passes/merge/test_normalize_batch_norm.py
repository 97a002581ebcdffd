"""NormalizeBatchNorm preserves the function, whatever stands between the rows and the BatchNormalization."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from onnxfold.channels import find_groups
from onnxfold.channels.layers import normalizations
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.passes.merge.normalize_batch_norm import NormalizeBatchNorm
from testing.compare import relative_difference
from testing.graph_builder import GraphBuilder
from testing.models import ALL_MODELS, random_input, run
from testing.quick import quick_fold
from testing.widening.widen import widen

Layer = Callable[[GraphBuilder, str], str]

#: Layers of ten outputs in front of a BatchNormalization, and whether their rows can be normalised.
LAYERS: dict[str, tuple[Layer, bool]] = {
    "gemm": (lambda g, h: g.gemm(h, 10), True),
    "gemm, no bias": (lambda g, h: g.gemm(h, 10, bias=None, alpha=0.5), True),
    "gemm, alpha": (lambda g, h: g.gemm(h, 10, alpha=0.5, trans_b=False), True),
    "gemm, bias row": (lambda g, h: g.gemm(h, 10, bias=(1, -1)), True),
    "gemm, beta": (lambda g, h: g.gemm(h, 10, beta=2.0), False),
    "gemm, beta 0": (lambda g, h: g.gemm(h, 10, beta=0.0), False),
    "gemm, scalar bias": (lambda g, h: g.gemm(h, 10, bias=()), False),
    "gemm, single bias": (lambda g, h: g.gemm(h, 10, bias=(1,)), False),
    "gemm, bias per sample": (lambda g, h: g.gemm(h, 10, bias=(3, -1)), False),
    "matmul, add": (lambda g, h: g.matmul_add(h, 10), True),
    "add, matmul": (lambda g, h: g.matmul_add(h, 10, bias_first=True), True),
    "relu between": (lambda g, h: g.relu(g.gemm(h, 10)), False),
}


def _net(layer: Layer) -> onnx.ModelProto:
    g = GraphBuilder("net", 0, (7,))
    h = layer(g, g.relu(g.gemm("x", 12)))
    g.output(g.gemm(g.relu(g.batch_norm(h)), 5))
    return g.build()


@pytest.mark.parametrize("name", LAYERS)
def test_layers_in_front_of_a_batch_norm(name: str) -> None:
    layer, normalisable = LAYERS[name]
    model = _net(layer)
    feeds = random_input(model, 0)
    view = load(model)
    groups = tuple(find_groups(view).groups)
    (norm,) = [n for g in groups for n in normalizations(view, g)]
    assert (norm.layer is not None) is normalisable
    assert NormalizeBatchNorm(groups)(view).modified is normalisable
    assert relative_difference(run(model, feeds), run(to_model(view), feeds)) <= 1e-5
    wide, _ = widen(model, 0)
    folded = quick_fold(wide, channel_ratio=0.5, verify=False).model
    assert relative_difference(run(model, feeds), run(folded, feeds)) <= 1e-4


@pytest.mark.parametrize("name", ALL_MODELS)
def test_function_is_preserved(name: str) -> None:
    model = ALL_MODELS[name](0)
    feeds = random_input(model, 0)
    view = load(model)
    groups = tuple(find_groups(view).groups)
    step = NormalizeBatchNorm(groups)
    normalised = [n for g in groups for n in normalizations(view, g) if n.layer is not None]
    assert step(view).modified is bool(normalised)
    assert relative_difference(run(model, feeds), run(to_model(view), feeds)) <= 1e-5
    for norm in normalised:
        variance = view.weight(norm.variance.axis.tensor)[norm.variance.positions]
        np.testing.assert_array_equal(variance, np.float32(1 - 1e-5))
    assert not step(view).modified


def test_a_layer_that_something_else_reads_stays() -> None:
    """Rescaled rows would reach the other reader."""
    g = GraphBuilder("net", 0, (3, 8, 8))
    h = g.conv("x", 6)
    h = g.add(g.batch_norm(h), h)
    g.output(g.head(g.relu(g.conv(h, 8))))
    model = g.build()
    view = load(model)
    assert not NormalizeBatchNorm(tuple(find_groups(view).groups))(view).modified


def test_epsilon_is_the_node_s_own() -> None:
    model = ALL_MODELS["chain_conv"](0)
    for node in model.graph.node:
        for attr in node.attribute:
            if attr.name == "epsilon":
                attr.f = 0.1
    feeds = random_input(model, 0)
    view = load(model)
    NormalizeBatchNorm(tuple(find_groups(view).groups))(view)
    np.testing.assert_allclose(view.weight("bn_0_var"), 0.9)
    assert relative_difference(run(model, feeds), run(to_model(view), feeds)) <= 1e-5
