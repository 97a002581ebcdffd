"""A fold for a microcontroller fits by the sum that benchmarks and firmware projects use, or is refused."""

from dataclasses import replace
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import onnx
import pytest

from onnxfold.budget.costs.memory import count_ram
from onnxfold.budget.devices import load_device, misfit
from onnxfold.errors import BudgetError, NothingToFoldError
from onnxfold.export.firmware import need as need_module
from onnxfold.export.firmware import write_project
from onnxfold.export.firmware.need import counted_need, need_of
from onnxfold.graph.files.load import load
from testing.graph_builder import GraphBuilder
from testing.quick import quick_fold

NANO = load_device("arduino-nano-33-ble")
pytestmark = pytest.mark.skipif(find_spec("ai_edge_litert") is None, reason="pip install 'onnxfold[tflite]'")


def wide(side: int = 32, first: int = 40) -> onnx.ModelProto:
    """Two convolutions; the first one's result is just what the Arduino leaves, as it is counted."""
    g = GraphBuilder("net", 0, (3, side, side))
    x = g.relu(g.conv("x", first))
    g.output(g.gemm(g.flatten(g.max_pool(g.relu(g.conv(g.max_pool(x), first)))), 5))
    return g.build()


def test_a_fold_fits_by_the_sum_of_the_project(tmp_path: Path) -> None:
    model = wide()
    counted = count_ram(load(model))
    assert counted is not None
    assert counted <= NANO.model_ram_bytes  # what was planned with before: it "fits" as it is
    before = need_of(load(model))
    assert misfit(before, NANO).startswith("does not fit: needs ")
    result = quick_fold(model, device="arduino-nano-33-ble", samples=2)
    need = need_of(result.view)
    assert misfit(need, NANO) == ""
    # It is no narrower than it must be: a twentieth is left free at most.
    assert need.activation_bytes is not None
    assert need.activation_bytes > 0.9 * need.room_for_activations(NANO)
    assert any(note.startswith("fits arduino-nano-33-ble: ") for note in result.report.notes)
    project = write_project(result.model, tmp_path / "sketch", "arduino", verify=False)
    assert project.arena_bytes == need.arena_bytes
    assert project.input_bytes + project.output_bytes == need.buffer_bytes
    assert project.misfit == ""


def test_int8_counts_as_int8() -> None:
    pytest.importorskip("ai_edge_quantizer")
    model = wide()
    with pytest.raises(
        NothingToFoldError, match=r"is within its limits already; fits arduino-nano-33-ble: \d+ of the 200 K"
    ):
        quick_fold(model, device="arduino-nano-33-ble", dtype="int8", samples=2)
    need, floats = need_of(load(model), "int8"), need_of(load(model))
    assert floats.activation_bytes is not None
    assert need.activation_bytes == floats.activation_bytes // 4
    assert need.buffer_bytes == 3 * 32 * 32 + 5


def test_what_no_width_makes_fit_is_refused_in_one_line_before_any_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxfold.folding.fold_task.FoldTask.inputs", lambda *_, **__: pytest.fail("inputs were made"))
    with pytest.raises(BudgetError) as error:
        quick_fold(wide(side=128, first=4), device="arduino-nano-33-ble")
    text = str(error.value)
    assert text.startswith("arduino-nano-33-ble cannot hold the model: even at its narrowest widths it does not fit: ")
    assert "K too much; give smaller inputs (--input-shapes), --dtype int8 or another device" in text
    assert "\n" not in text


def test_what_is_many_times_too_large_is_not_even_exported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(need_module, "export_model", lambda *_, **__: pytest.fail("exported"))
    text = (files("onnxfold.budget") / "devices" / "arduino-nano-33-ble.toml").read_text()
    tiny = text.replace("flash_bytes = 1_048_576", "flash_bytes = 65_536").replace("= 172_032", "= 61_000")
    (tmp_path / "tiny.toml").write_text(tiny)
    with pytest.raises(BudgetError, match=r"tiny cannot hold the model: .* bytes of constants, for 434 of flash"):
        quick_fold(wide(side=32), device=str(tmp_path / "tiny.toml"))


def test_flash_of_the_file_counts(tmp_path: Path) -> None:
    board = tmp_path / "board.toml"
    text = (files("onnxfold.budget") / "devices" / "arduino-nano-33-ble.toml").read_text()
    board.write_text(text.replace("usable_flash_fraction = 0.9375", "usable_flash_fraction = 0.18"))
    result = quick_fold(wide(side=16, first=20), device=str(board), samples=2)
    need = need_of(result.view)
    assert need.model_bytes <= load_device(board).model_flash_bytes
    assert need.model_bytes > 0.8 * load_device(board).model_flash_bytes


def test_what_cannot_be_exported_is_not_called_a_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(need_module, "export_model", lambda *_, **__: pytest.fail("exported"))
    view = load(wide())
    need = counted_need(view, "no such operator")
    assert (need.activation_bytes, need.buffer_bytes) == (count_ram(view), 4 * (3 * 32 * 32 + 5))
    assert need.basis == "counted on the graph, lower bounds: no such operator"
    assert counted_need(view, "", shrinks=4).buffer_bytes == 3 * 32 * 32 + 5
    assert not need.is_exact
    assert misfit(replace(need, activation_bytes=None), NANO).startswith("not known to fit")
