"""Models as torch modules: the same outputs, gradients for every weight, and a way back to a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from onnxfold.errors import ConfigError, OptionTypeError, UnsupportedModelError
from onnxfold.fidelity.measures import accuracy
from onnxfold.torch_graph import availability
from testing.models import ALL_MODELS, chain_conv, mlp, random_input, run
from testing.rule_models.table import RULE_MODELS
from tests.command_line import onnxfold as command

PAGE = Path(__file__).resolve().parents[2] / "docs" / "finetune.md"


@pytest.mark.parametrize("name", ["residual", "squeeze_excite", "matmul_bias_sequence", "prelu_net", "two_outputs"])
def test_outputs_are_those_of_onnxruntime_and_untrained_weights_go_back_unchanged(name: str) -> None:
    model = ALL_MODELS[name](0)
    feeds = random_input(model, 0)
    net = onnxfold.to_torch(model)
    found = net(*(torch.tensor(values) for values in feeds.values()))
    for expected, got in zip(run(model, feeds), found if isinstance(found, tuple) else (found,), strict=True):
        np.testing.assert_allclose(got.detach().numpy(), expected, rtol=1e-4, atol=1e-4)
    for before, after in zip(run(model, feeds), run(net.to_onnx(), feeds), strict=True):
        np.testing.assert_array_equal(before, after)


def test_every_weight_trains_and_nothing_else() -> None:
    model = chain_conv(0)
    net = onnxfold.to_torch(model)
    stored = {t.name for t in model.graph.initializer}
    statistics = {name for name in stored if name.endswith(("_mean", "_var"))}
    assert statistics
    assert set(net.names.values()) == stored - statistics
    net(torch.randn(4, 3, 8, 8)).square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in net.parameters())


def _steps(net: Any, x: torch.Tensor, y: torch.Tensor, count: int) -> list[float]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    losses = []
    for _ in range(count):
        loss = torch.nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("build", [mlp, chain_conv])
def test_steps_lower_the_loss_and_the_file_gives_the_trained_outputs(build: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = build(0)
    folded = onnxfold.fold(model, 0.5, method="fold-naive", allocation="uniform", verify=False)
    path = folded.save(tmp_path / "folded.onnx")
    x = torch.tensor(random_input(model, 1, batch=32)["x"])
    y = torch.tensor(run(model, {"x": x.numpy()})[0].argmax(axis=1))
    net = onnxfold.to_torch(path)
    losses = _steps(net, x, y, 12)
    assert losses[-1] < 0.9 * losses[0]
    written = net.to_onnx(tmp_path / "trained.onnx")
    np.testing.assert_allclose(run(written, {"x": x.numpy()})[0], net(x).detach().numpy(), rtol=1e-4, atol=1e-5)
    assert onnx.load(tmp_path / "trained.onnx").SerializeToString() == written.SerializeToString()
    assert {p.key for p in written.metadata_props} == {p.key for p in folded.model.metadata_props}
    onnx.checker.check_model(written, full_check=True)


def _one_layer(weight: Any, *, transposed: bool = False, name: str = "layer.weight") -> onnx.ModelProto:
    kind = helper.np_dtype_to_tensor_dtype(weight.dtype)
    nodes = [helper.make_node("MatMul", ["x", "w" if transposed else name], ["y"], name="dot")]
    if transposed:
        nodes.insert(0, helper.make_node("Transpose", [name], ["w"]))
    ends = [helper.make_tensor_value_info(n, kind, ["N", 3]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(weight, name)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_a_weight_that_is_laid_out_first_trains_too() -> None:
    weight = np.arange(9, dtype=np.float32).reshape(3, 3)
    net = onnxfold.to_torch(_one_layer(weight, transposed=True))
    assert net.names == {"layer_weight": "layer.weight"}
    net(torch.ones(1, 3)).sum().backward()
    (parameter,) = net.parameters()
    with torch.no_grad():
        parameter += parameter.grad
    np.testing.assert_array_equal(numpy_helper.to_array(net.to_onnx().graph.initializer[0]), weight + 1)


def test_weights_keep_their_type() -> None:
    net = onnxfold.to_torch(_one_layer(np.ones((3, 3), np.float16)))
    assert {p.dtype for p in net.parameters()} == {torch.float32}
    (stored,) = net.to_onnx().graph.initializer
    assert stored.data_type == TensorProto.FLOAT16


def test_the_file_that_was_read_is_not_overwritten(tmp_path: Path) -> None:
    onnx.save(mlp(0), tmp_path / "in.onnx")
    with pytest.raises(ConfigError, match="is the input model"):
        onnxfold.to_torch(tmp_path / "in.onnx").to_onnx(tmp_path / "in.onnx")


def test_what_cannot_be_trained_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedModelError, match="no differentiable form"):
        onnxfold.to_torch(RULE_MODELS["LSTM"]())
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 3]) for n in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
    with pytest.raises(ConfigError, match="no float weights to train"):
        onnxfold.to_torch(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    with pytest.raises(ConfigError, match="takes 1 inputs"):
        onnxfold.to_torch(mlp(0))()
    with pytest.raises(OptionTypeError, match="device"):
        onnxfold.to_torch(mlp(0), device=3)  # type: ignore[arg-type]
    monkeypatch.setattr(availability, "torch_is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"pip install torch"):
        onnxfold.to_torch(mlp(0))


@pytest.mark.long
def test_the_page_on_retraining_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands and code, in order, on a network whose answers are the labels."""
    monkeypatch.chdir(tmp_path)
    model = mlp(0, widths=(24, 24))
    onnx.save(model, "model.onnx")
    for name, count, seed in (("train", 1536, 1), ("test", 256, 2)):
        x = np.random.default_rng(seed).standard_normal((count, 7)).astype(np.float32)
        np.savez(f"{name}.npz", x=x, y=run(model, {"x": x})[0].argmax(axis=1))
    variables: dict[str, Any] = {}
    blocks = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert [kind for kind, _ in blocks].count("python") == 2
    for kind, text in blocks:
        if kind == "python":
            exec(compile(text, str(PAGE), "exec"), variables)
            continue
        for line in text.splitlines():
            done = command(*line.removeprefix("onnxfold ").split())
            assert done.returncode == 0, done.stderr
    with np.load("test.npz") as data:
        right = {
            name: accuracy(run(onnx.load(f"{name}.onnx"), {"x": data["x"]}), data["y"])
            for name in ("folded", "retrained", "distilled")
        }
    assert right["retrained"] > right["folded"] + 0.05
    assert right["distilled"] > right["folded"] + 0.05
