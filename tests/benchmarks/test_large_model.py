"""The decoder of the benchmark of large models: folded as there, but narrow; what is extrapolated from two of them."""

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto

import onnxfold
from benchmarks import seven_billion
from benchmarks.large_model import extrapolated
from onnxfold.fidelity import verify
from onnxfold.folding import open_model
from onnxfold.inputs import token_inputs


@pytest.mark.parametrize("method", ["fold-ls", "fold-ar"])
def test_a_decoder_in_float16_stays_so(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With edited weights in a file, and no run of the whole network."""
    monkeypatch.setattr(open_model, "_SCRATCH_PART", 1 << 50)
    for module in (verify, token_inputs):
        monkeypatch.setattr(module, "loaded_bytes", lambda view: 1 << 60)
    path = seven_billion.write_decoder(tmp_path, layers=2, scale=16)
    result = onnxfold.fold(path, method=method, sparsity=0.1, verify=False, samples=2)
    result.save(tmp_path / "out.onnx", save_as_external_data=True)
    before, after = (onnx.load(file, load_external_data=False).graph for file in (path, tmp_path / "out.onnx"))
    assert any(group.folded_width < group.width for group in result.report.groups)
    types = {tensor.name: tensor.data_type for tensor in before.initializer}
    kept = {tensor.name: tensor.data_type for tensor in after.initializer if tensor.name in types}
    assert kept == {name: types[name] for name in kept}
    assert sum(elem_type == TensorProto.FLOAT16 for elem_type in kept.values()) >= 15
    for was, is_now in zip((*before.input, *before.output), (*after.input, *after.output), strict=True):
        assert was.type.tensor_type.elem_type == is_now.type.tensor_type.elem_type


def test_what_all_layers_take_is_extrapolated_and_called_so() -> None:
    outcomes = {n: {"cpu": 10.0 + 3.0 * n, "seconds": 50.0, "peak_gib": 2.0 + 0.1 * n} for n in (2, 4)}
    part = extrapolated("how", outcomes)
    assert "**extrapolated** from 2 and 4" in part.row
    assert "3 s per layer" in part.row
    assert part.peak_gib == pytest.approx(2.0 + 0.1 * 32)
    assert part.fits
    assert not extrapolated("how", {n: {**one, "peak_gib": n * 1.0} for n, one in outcomes.items()}).fits
