"""Whole networks in the torch executor: outputs against onnxruntime, gradients against finite differences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.files.load import load
from onnxfold.inputs.inversion.descent import NormalizeAndMeasure
from onnxfold.passes.normalize.pipelines import NORMALIZE
from onnxfold.torch_graph import registry
from onnxfold.torch_graph.executor import TorchGraph, unsupported_ops
from onnxfold.torch_graph.registry import BUILDERS, TorchNode
from testing.models import ALL_MODELS, random_input, run
from testing.rule_models.table import RULE_MODELS
from testing.zoo.export import Form, export
from testing.zoo.scalable import autoencoder, example_input, mobilenet_v2, seeded, squeeze_excite_net

MODELS = {**RULE_MODELS, **{name: (lambda build=build: build(0)) for name, build in ALL_MODELS.items()}}
#: Fused and recurrent operators have no differentiable form here.
NOT_COVERED = {
    "FusedConv", "FusedGemm", "GRU", "GRU-bidirectional", "LSTM", "LSTM-bidirectional", "RNN",
    "RNN-bidirectional", "Crop",
}  # fmt: skip
#: Nor have some operators that language models are written with.
_OF_LANGUAGE_MODELS = ("EmbedLayerNormalization", "MatMulNBits")
NOT_COVERED |= {name for name in RULE_MODELS if name.startswith(_OF_LANGUAGE_MODELS)}


def _check_parity(model: onnx.ModelProto, *, normalize: bool = False) -> None:
    feeds = random_input(model, 0)
    view = load(model)
    if normalize:
        NORMALIZE(view)
    graph = TorchGraph(view)
    outputs = graph.run({n: graph.tensor(v) for n, v in feeds.items()}, view.output_names)
    for expected, found in zip(run(model, feeds), outputs.values(), strict=True):
        assert tuple(found.shape) == expected.shape
        scale = max(float(np.abs(expected).max()), 1e-6)
        np.testing.assert_allclose(found.numpy() / scale, expected / scale, atol=2e-5)


@pytest.mark.parametrize("name", sorted(set(MODELS) - NOT_COVERED))
def test_network(name: str) -> None:
    _check_parity(MODELS[name]())


@pytest.mark.parametrize("name", sorted(NOT_COVERED))
def test_what_is_not_covered_is_said_up_front(name: str) -> None:
    view = load(MODELS[name]())
    reasons = unsupported_ops(view)
    assert reasons
    assert all("no differentiable form" in reason for reason in reasons)
    with pytest.raises(UnsupportedModelError, match="no differentiable form"):
        TorchGraph(view)


def test_constants_lie_on_the_device() -> None:
    index = helper.make_node("Constant", [], ["index"], value=numpy_helper.from_array(np.array([0, 2])))
    pick = helper.make_node("Gather", ["w", "index"], ["picked"], axis=0)
    add = helper.make_node("Add", ["x", "picked"], ["y"])
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy")
    weight = numpy_helper.from_array(np.arange(3, dtype=np.float32), "w")
    model = helper.make_model(helper.make_graph([index, pick, add], "g", [x], [y], [weight]))
    graph = TorchGraph(load(model), device="meta", fed=["w"])  # a device that only knows shapes
    feeds = {"x": torch.empty(2, device="meta"), "w": torch.empty(3, device="meta")}
    outputs = graph.run(feeds, ["index", "y"])
    assert {name: value.device.type for name, value in outputs.items()} == {"index": "meta", "y": "meta"}


@pytest.mark.parametrize(
    ("build", "form"),
    [
        (squeeze_excite_net, "legacy-bn"),
        (autoencoder, "legacy-bn"),
        (autoencoder, "dynamo-raw"),
        (mobilenet_v2, "legacy-bn"),
    ],
)
def test_export(build: object, form: Form, tmp_path: Path) -> None:
    small = {"width_mult": 0.125} if build is mobilenet_v2 else {"width": 6}
    module = seeded(build(**small), 0)  # type: ignore[operator]
    _check_parity(onnx.load(export(module, example_input(module), tmp_path / "net.onnx", form)), normalize=True)


@pytest.mark.parametrize(
    "name", ["residual", "squeeze_excite", "dense_net", "autoencoder", "conv1d", "matmul_bias_sequence", "prelu_net"]
)
def test_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directional derivative of a random function of the output, in double precision."""
    monkeypatch.setattr(registry, "FLOAT", torch.float64)
    model = ALL_MODELS[name](0)
    graph = TorchGraph(load(model))
    x = graph.tensor(random_input(model, 0)["x"]).requires_grad_()
    random = torch.Generator().manual_seed(0)
    direction = torch.randn(x.shape, generator=random, dtype=torch.float64)
    weights: list[torch.Tensor] = []

    def loss(values: torch.Tensor) -> torch.Tensor:
        y = graph.run({"x": values}, ["y"])["y"]
        if not weights:
            weights.append(torch.randn(y.shape, generator=random, dtype=torch.float64))
        return (y * weights[0]).sum()

    loss(x).backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    step = 1e-7
    with torch.no_grad():
        measured = (loss(x + step * direction) - loss(x - step * direction)) / (2 * step)
    assert float((x.grad * direction).sum()) == pytest.approx(float(measured), rel=1e-4)
    assert float(measured) != 0.0


@pytest.mark.parametrize("layout", ["rows", "channels first", "channels last", "signals"])
def test_normalize_and_measure(layout: str) -> None:
    shape = {"rows": (7, 3), "signals": (4, 3, 5)}.get(layout, (4, 3, 5, 2))
    random = torch.Generator().manual_seed(1)
    x = 3.0 + torch.randn(shape, generator=random, dtype=torch.float64)
    if layout == "channels last":
        x = x.contiguous(memory_format=torch.channels_last)
    a, b, centre = (torch.randn(3, generator=random, dtype=torch.float64) for _ in range(3))
    x.requires_grad_()
    y, mean, variance = NormalizeAndMeasure.apply(x, a, b, centre)  # type: ignore[no-untyped-call]
    samples = x.detach().movedim(1, -1).reshape(-1, 3).numpy()
    np.testing.assert_allclose(mean.detach(), samples.mean(0))
    np.testing.assert_allclose(variance.detach(), samples.var(0))
    np.testing.assert_allclose(y.detach().movedim(1, -1).reshape(-1, 3), samples * a.numpy() + b.numpy())
    assert torch.autograd.gradcheck(lambda t: NormalizeAndMeasure.apply(t, a, b, centre), [x])  # type: ignore[no-untyped-call]


def test_weights_are_constants_and_half_precision_computes_in_single() -> None:
    model = ALL_MODELS["chain_conv"](0)
    view = load(model)
    for name in view.float_weight_names():
        view.put_weights({name: view.weight(name).astype(np.float16)})
    graph = TorchGraph(view)
    x = graph.tensor(random_input(model, 0)["x"].astype(np.float16)).requires_grad_()
    y = graph.run({"x": x}, ["y"])["y"]
    assert y.dtype == torch.float32
    y.sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    constants = [graph.tensor(view.weight(n)) for n in view.float_weight_names()]
    assert not any(t.requires_grad for t in constants)
    np.testing.assert_allclose(y.detach(), run(model, random_input(model, 0))[0], rtol=0.05, atol=0.05)


def test_only_what_is_asked_for_is_run() -> None:
    model = ALL_MODELS["two_outputs"](0)
    graph = TorchGraph(load(model))
    ran: list[str] = []
    for key, operation in list(graph.operations.items()):

        def noting(*inputs: torch.Tensor, key: str = key, operation: object = operation) -> object:
            ran.append(key)
            return operation(*inputs)  # type: ignore[operator]

        graph.operations[key] = noting
    x = graph.tensor(random_input(model, 0)["x"])
    found = graph.run({"x": x}, ["features", "x"])
    assert found["x"] is x
    assert "y" not in ran
    assert ran[-1] == "features"


def test_a_node_that_fails_is_named() -> None:
    graph = TorchGraph(load(ALL_MODELS["mlp"](0)))
    with pytest.raises(UnsupportedModelError, match=r"gemm_0.*does not run in torch"):
        graph.run({"x": torch.zeros(2, 3)}, ["y"])


def test_constant_nodes_are_computed_once() -> None:
    nodes = [
        helper.make_node("Constant", [], ["two"], value_float=2.0),
        helper.make_node("Neg", ["two"], ["minus_two"]),
        helper.make_node("Mul", ["x", "minus_two"], ["y"]),
    ]
    infos = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [3]) for n in ("x", "y")]
    view = load(helper.make_model(helper.make_graph(nodes, "g", infos[:1], infos[1:]), ir_version=8,
                                  opset_imports=[helper.make_opsetid("", 17)]))  # fmt: skip
    graph = TorchGraph(view)
    del graph.operations["minus_two"]
    assert graph.run({"x": torch.arange(3.0)}, ["y", "two"])["y"].tolist() == [0.0, -2.0, -4.0]


def test_clip_passes_gradients_between_its_bounds_only() -> None:
    clip = BUILDERS.find("", "Clip", 13)
    assert clip is not None
    x = torch.tensor([-1.0, 0.5, 3.0, 7.0], requires_grad=True)
    case = helper.make_node("Clip", ["x", "low", "high"], ["y"])
    cut = clip(TorchNode(load(ALL_MODELS["residual"](0)), case))
    cut(x, torch.tensor(0.0), torch.tensor(6.0)).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 1.0, 1.0, 0.0]


def test_clip_leaves_integers_integers() -> None:
    clip = BUILDERS.find("", "Clip", 13)
    assert clip is not None
    case = helper.make_node("Clip", ["x", "low"], ["y"])
    cut = clip(TorchNode(load(ALL_MODELS["residual"](0)), case))
    large = 2**53 + 1
    assert torch.equal(cut(torch.tensor([-3, large]), torch.tensor(0)), torch.tensor([0, large]))
