"""Inversion in bfloat16, where the processor multiplies it; here whatever the processor does."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from onnxfold.graph.files.load import load  # noqa: E402
from onnxfold.inputs.inversion import invert  # noqa: E402
from onnxfold.inputs.inversion.deep_inversion import Inversion, InversionSettings, deep_inversion  # noqa: E402
from onnxfold.inputs.inversion.descent import Adam, NormalizeAndMeasure  # noqa: E402
from onnxfold.torch_graph.executor import TorchGraph  # noqa: E402
from testing.graph_builder import GraphBuilder  # noqa: E402
from testing.models import ALL_MODELS, random_input  # noqa: E402

EXACT = InversionSettings(exact_steps=(12,))


def _inverted(name: str, settings: InversionSettings = EXACT, threads: int | None = None) -> Inversion:
    model = ALL_MODELS[name](0)
    return deep_inversion(load(model), random_input(model, 0, 16), settings=settings, threads=threads)


@pytest.fixture
def half(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Take bfloat16 whatever the processor; note for every batch of gradients whether it was computed so."""
    seen: list[bool] = []
    terms = invert.InversionObjective.terms

    def noting(self: invert.InversionObjective, *args: object) -> object:
        seen.append(self._half)
        return terms(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(invert, "multiplies_bfloat16", lambda: True)
    monkeypatch.setattr(invert.InversionObjective, "terms", noting)
    return seen


@pytest.mark.parametrize("name", ["residual", "mlp_bn", "conv1d", "preact_residual"])
def test_statistics_come_as_close_as_in_float32(name: str, half: list[bool]) -> None:
    rough, fine = _inverted(name), _inverted(name, replace(EXACT, bfloat16=False))
    assert half[0]
    assert not half[-1]
    for found in (rough.inputs[0]["x"], fine.inputs[0]["x"]):
        assert found.dtype == np.float32
    assert rough.initial.get("statistics") == pytest.approx(fine.initial.get("statistics"), rel=0.02)
    assert rough.final.get("statistics") == pytest.approx(fine.final.get("statistics"), rel=0.1)
    assert fine.final.get("statistics") is not None
    assert fine.initial.get("statistics") is not None
    assert fine.final.get("statistics") < 0.8 * fine.initial.get("statistics")


def test_what_half_precision_cannot_run_is_run_in_float32(half: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    terms = invert.InversionObjective.terms

    def refusing(self: invert.InversionObjective, *args: object) -> object:
        if self._half:
            raise invert.UnsupportedModelError("no kernel for bfloat16")
        return terms(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(invert.InversionObjective, "terms", refusing)
    found = _inverted("residual")
    fine = _inverted("residual", replace(EXACT, bfloat16=False))
    assert found.inputs[0]["x"].tobytes() == fine.inputs[0]["x"].tobytes()
    assert not any(half)


def test_threads_do_not_change_the_images(half: list[bool]) -> None:
    one, two = (_inverted("residual", threads=n).inputs[0]["x"].tobytes() for n in (1, 2))
    assert one == two
    assert all(half)


@pytest.mark.parametrize("layout", ["channels first", "channels last"])
def test_statistics_of_half_precision_are_added_up_in_float32(layout: str) -> None:
    random = torch.Generator().manual_seed(0)
    x = (torch.randn(8, 5, 6, 6, generator=random) * 3 + 100).bfloat16()
    x = x.contiguous(memory_format=torch.channels_last if layout == "channels last" else torch.contiguous_format)
    a, b, centre = torch.rand(5, generator=random) + 0.5, torch.randn(5, generator=random), torch.full((5,), 90.0)
    x.requires_grad_()
    y, mean, variance = NormalizeAndMeasure.apply(x, a, b, centre)
    exact = x.detach().double().movedim(1, -1).reshape(-1, 5)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(mean.double(), exact.mean(0), rtol=1e-6, atol=0.0)
    torch.testing.assert_close(variance.double(), exact.var(0, correction=0), rtol=1e-4, atol=0.0)
    (mean.sum() + variance.sum()).backward()
    expected = (1 + 2 * (x.detach().double() - exact.mean(0).view(-1, 1, 1))) / len(exact)
    torch.testing.assert_close(x.grad.double(), expected, rtol=0.02, atol=2e-4)


def test_adam_is_adam() -> None:
    values, gradients = np.array([0.3, -1.0]), [np.array([0.5, -2.0]), np.array([0.1, 0.0]), np.array([-3.0, 1.0])]
    x = torch.tensor(values, requires_grad=True)
    adam, mean, square = Adam([x]), np.zeros(2), np.zeros(2)
    for t, gradient in enumerate(gradients, start=1):
        x.grad = torch.tensor(gradient)
        adam.step(0.1 / t)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        values = values - 0.1 / t * (mean / (1 - 0.9**t)) / (np.sqrt(square / (1 - 0.999**t)) + 1e-8)
        np.testing.assert_allclose(x.detach().numpy(), values, rtol=1e-12)
        assert x.grad is None


@pytest.mark.long
def test_no_compiler_is_imported() -> None:
    """torch's optimisers import it, which takes a second."""
    code = (
        "import sys; from tests.inputs.test_half_precision import _inverted; _inverted('residual')\n"
        "assert 'torch' in sys.modules and 'torch._dynamo' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_depthwise_convolutions_with_strides_are_computed_in_float32() -> None:
    """Their gradient takes many times as long in bfloat16; what comes out is rounded to it all the same."""
    graph = GraphBuilder("depthwise", 0, (8, 9, 9))
    kernel = graph.constant("kernel", graph.normal(8, 1, 3, 3))
    graph.outputs.append(graph.node("Conv", ["x", kernel], (8, 4, 4), group=8, strides=[2, 2]))
    view = load(graph.build())
    torch_graph, x = TorchGraph(view), torch.randn(2, 8, 9, 9, generator=torch.Generator().manual_seed(0)).bfloat16()
    (name,) = view.output_names
    with torch.autocast("cpu", torch.bfloat16):
        y = torch_graph.run({"x": x}, [name])[name]
    exact = torch.conv2d(x.float(), torch.from_numpy(view.weight("kernel").copy()), None, 2, groups=8)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, exact.bfloat16())
