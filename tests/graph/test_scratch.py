"""Edited weights that wait in a file: the same bytes, and a plain line where there is no room."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxfold.errors import ModelSaveError
from onnxfold.fidelity.verify import WalkedNetwork
from onnxfold.folding import open_model
from onnxfold.graph import spill
from onnxfold.graph.files.load import load
from onnxfold.graph.finite import edited_flaws
from onnxfold.graph.run.session import Session
from onnxfold.graph.spill import SpillFile
from onnxfold.graph.tensors import DerivedTensor
from onnxfold.inputs.token_inputs import TokenSource
from onnxfold.inputs.tokens.interface import token_interface
from testing.language_models import grouped_query_decoder
from testing.quick import quick_fold


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(grouped_query_decoder(), path, save_as_external_data=True, location="model.data", size_threshold=64)
    return path


@pytest.mark.parametrize("method", ["fold-ls", "fold-ar", "prune-l2"])
def test_a_fold_through_a_file_gives_the_same_bytes(
    method: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"method": method, "sparsity": 0.2, "samples": 4, "verify": False, "save_as_external_data": True}
    quick_fold(model, **options).save(tmp_path / "a.onnx")
    monkeypatch.setattr(open_model, "_SCRATCH_PART", 1 << 50)
    monkeypatch.setattr(spill, "_KEPT_BYTES", 16)
    monkeypatch.setattr("onnxfold.passes.merge.fold_channels._STREAMED_BYTES", 16)
    result = quick_fold(model, **options)
    assert not [
        name for name, weight in result.view.weights.items() if isinstance(weight, np.ndarray) and weight.nbytes > 64
    ]
    waiting = [w for w in result.view.weights.values() if isinstance(w, DerivedTensor) and w.base_dir is None]
    assert method != "fold-ls" or waiting
    result.save(tmp_path / "b.onnx")
    assert (tmp_path / "a.onnx.data").read_bytes() == (tmp_path / "b.onnx.data").read_bytes()


def test_what_waits_in_a_file_is_still_checked(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "_KEPT_BYTES", 16)
    view = load(model)
    view.scratch = SpillFile()
    name = next(name for name in view.float_weight_names() if view.weight_size(name) > 64)
    values = view.weight(name)
    view.set_weight(name, np.full_like(values, np.inf))
    assert isinstance(view.weights[name], DerivedTensor)
    assert edited_flaws(view.copy()) == {name: "infinite"}


def test_a_full_disk_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def seek(self, *_: int) -> int:
            return 0

        def write(self, _: object) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(spill.tempfile, "TemporaryFile", lambda **_: Full())
    with pytest.raises(
        ModelSaveError, match=r"do not fit into the temporary folder '.*': No space left on device; set TMPDIR"
    ):
        SpillFile().keep_weight(np.zeros(1 << 20, np.float32))


def test_a_model_that_does_not_fit_is_run_node_by_node(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are drawn, not written, and the result is verified on a batch of them."""
    usual = quick_fold(model, sparsity=0.2, samples=4).report
    for module in ("fidelity.verify", "inputs.token_inputs"):
        monkeypatch.setattr(f"onnxfold.{module}.loaded_bytes", lambda view: 1 << 60)
    report = quick_fold(model, sparsity=0.2, samples=4).report
    assert usual.fidelity is not None
    assert report.inputs is not None
    assert report.fidelity is not None
    assert "cannot write: the model as a whole needs" in report.inputs.reason
    assert report.fidelity.outputs
    assert usual.fidelity.inputs == "held-out self-written text"
    assert report.fidelity.inputs == "held-out random tokens"


def test_a_walked_network_gives_what_onnxruntime_gives(model: Path) -> None:
    view = load(model)
    session, walked = Session(str(model)), WalkedNetwork(view)
    assert walked.output_names == session.output_names
    assert walked.inputs == session.inputs
    feeds = TokenSource(view, token_interface(view)).batches(np.arange(12).reshape(2, 6))[0]
    for one, other in zip(walked.run(feeds), session.run(feeds), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
