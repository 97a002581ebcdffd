"""Real layouts in every form that torch exports: enough weights in groups, folds to what is asked, runs."""

from pathlib import Path

import pytest

import onnxfold
from onnxfold import api
from tests import models, torch_zoo
from tests.quick import quick_fold

NETS = {
    "vgg11_bn": lambda: torch_zoo.vgg11_bn(width=8),
    "resnet18": lambda: torch_zoo.resnet18(width=8),
    "resnet50": lambda: torch_zoo.resnet50(width=8),
    "mobilenet_v2": lambda: torch_zoo.mobilenet_v2(width_mult=0.25),
}


@pytest.mark.parametrize("form", torch_zoo.FORMS)
@pytest.mark.parametrize("name", NETS)
def test_every_export_folds_to_half(name: str, form: torch_zoo.Form, tmp_path: Path) -> None:
    net = NETS[name]()
    torch_zoo.randomise(net, 0)
    path = torch_zoo.export(net, torch_zoo.example_input(net), tmp_path / "net.onnx", form)
    share = api.inspect_model(path).share
    assert share.either >= 0.95
    assert share.outputs >= 0.90
    assert share.inputs >= 0.90
    method = "fold-ls" if form == "legacy-fused" else "fold-ar"
    result = quick_fold(path, 0.5, method=method, allocation="uniform")
    assert result.report.sparsity == pytest.approx(0.5, abs=0.01)
    assert all(g.folded_width < g.width for g in result.report.groups if g.width > 2)
    assert result.report.fidelity is not None  # it ran in onnxruntime beside the original


@pytest.mark.parametrize("form", ["legacy-bn", "legacy-fused"])
def test_initializers_routed_through_identity(form: torch_zoo.Form, tmp_path: Path) -> None:
    """Untrained BatchNormalizations are all equal, so the exporter deduplicates them across layers and roles."""
    net = torch_zoo.resnet18(width=8).eval()
    path = torch_zoo.export(net, torch_zoo.example_input(net), tmp_path / "net.onnx", form)
    assert len(onnxfold.inspect(path)) == 12
    assert quick_fold(path, 0.5, allocation="uniform").report.sparsity == pytest.approx(0.5, abs=0.01)


def test_nhwc_tail() -> None:
    """Conv, Transpose to NHWC, Reshape, Gemm as tf2onnx writes it: columns come as position * C + channel."""
    model = models.nhwc_tail(0)
    assert api.inspect_model(model).share.either >= 0.95
    report = quick_fold(model, 0.5, allocation="uniform").report
    assert report.sparsity == pytest.approx(0.5, abs=0.01) or "whole numbers" in report.notes[0]
    assert report.sparsity > 0.4
