"""Real layouts in every form that torch exports: enough weights in groups, folds to what is asked, runs."""

import fcntl
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfold
from onnxfold import api
from testing import models
from testing.quick import quick_fold
from testing.zoo import export as zoo_export
from testing.zoo import scalable

NETS = {
    "vgg11_bn": lambda: scalable.vgg11_bn(width=8),
    "resnet18": lambda: scalable.resnet18(width=8),
    "resnet50": lambda: scalable.resnet50(width=8),
    "mobilenet_v2": lambda: scalable.mobilenet_v2(width_mult=0.25),
}


#: Torch takes five seconds to trace these; of two legacy forms of a network, the other one is in every run.
LONG = {(name, form) for name in ("vgg11_bn", "resnet50", "mobilenet_v2") for form in ("dynamo", "dynamo-raw")}
LONG |= {("mobilenet_v2", "legacy-fused"), ("resnet50", "legacy-bn")}
CASES = [
    pytest.param(*case, marks=[pytest.mark.long] if case in LONG else []) for case in product(NETS, zoo_export.FORMS)
]


def _exported(name: str, form: zoo_export.Form, folder: Path) -> Path:
    """Export a network once per run; one trace gives both forms of the dynamo exporter."""
    siblings = ("dynamo", "dynamo-raw") if form.startswith("dynamo") else (form,)
    with (folder / f"{name}.{siblings[0]}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        paths = {f: folder / f"{name}.{f}.onnx" for f in siblings}
        if not paths[form].exists():
            net = scalable.seeded(NETS[name](), 0)
            zoo_export.export_forms(net, scalable.example_input(net), paths)
    return paths[form]


@pytest.mark.parametrize(("name", "form"), CASES)
def test_every_export_folds_to_half(name: str, form: zoo_export.Form, shared_folder: Path) -> None:
    path = _exported(name, form, shared_folder)
    share = api.inspect_model(path).share
    assert share.either >= 0.95
    assert share.outputs >= 0.90
    assert share.inputs >= 0.90
    method, verified = "fold-ls" if form == "legacy-fused" else "fold-ar", form == "legacy-bn"
    result = quick_fold(path, 0.5, method=method, allocation="uniform", verify=verified)
    assert result.report.sparsity == pytest.approx(0.5, abs=0.01)
    assert all(g.folded_width < g.width for g in result.report.groups if g.width > 2)
    if verified:
        assert result.report.fidelity is not None  # it ran in onnxruntime beside the original
    else:
        original = onnx.load(path)
        feeds = models.random_input(original, 0, batch=2)
        before, after = models.run(original, feeds), models.run(result.model, feeds)
        assert [values.shape for values in after] == [values.shape for values in before]
        assert all(np.isfinite(values).all() for values in after)


@pytest.mark.parametrize("form", ["legacy-bn", "legacy-fused"])
def test_initializers_routed_through_identity(form: zoo_export.Form, tmp_path: Path) -> None:
    """Untrained BatchNormalizations are all equal, so the exporter deduplicates them across layers and roles."""
    net = scalable.resnet18(width=8).eval()
    path = zoo_export.export(net, scalable.example_input(net), tmp_path / "net.onnx", form)
    assert len(onnxfold.inspect(path)) == 12
    assert quick_fold(path, 0.5, allocation="uniform").report.sparsity == pytest.approx(0.5, abs=0.01)


def test_nhwc_tail() -> None:
    """Conv, Transpose to NHWC, Reshape, Gemm as tf2onnx writes it: columns come as position * C + channel."""
    model = models.nhwc_tail(0)
    assert api.inspect_model(model).share.either >= 0.95
    report = quick_fold(model, 0.5, allocation="uniform").report
    assert report.sparsity == pytest.approx(0.5, abs=0.01) or "whole numbers" in report.notes[0]
    assert report.sparsity > 0.4
