"""The published table: the inferred formula, and what cannot be."""

import pytest

from benchmarks.edge.paper_table import (
    DEVICES,
    PUBLISHED,
    contradictions,
    findings,
    flash_bytes,
    inference,
    inferred_channels,
    paper_rows,
    ram_bytes,
)
from onnxfold.budget.devices import load_device
from onnxfold.graph.files.load import load


@pytest.mark.parametrize(("channels", "published_k"), [(15, 59.5), (14, 55.7), (12, 48.0), (9, 36.5)])
def test_the_ram_formula_gives_the_published_figures(channels: int, published_k: float) -> None:
    assert round(ram_bytes(channels) / 1024, 1) == published_k


def test_the_published_figures_give_the_widths() -> None:
    assert [inferred_channels(c) for c in PUBLISHED] == [15, 14, 12, 9]
    assert [c.ram_k for c in PUBLISHED] == [59.5, 55.7, 48.0, 36.5]


def test_the_formula_is_the_peak_of_activations_of_such_a_network() -> None:
    """Convolution and pooling of LeNet5-2x's first layer, counted on the bundled model."""
    from importlib.resources import as_file, files

    from onnxfold.budget.costs.memory import count_ram

    with as_file(files("onnxfold.data") / "lenet5_2x.onnx") as path:
        counted = count_ram(load(path))
    assert counted == ram_bytes(16) - 2.08 * 1024


def test_four_bytes_per_weight_give_the_published_ends_of_flash() -> None:
    assert flash_bytes(16) == 4 * (981_386 - 2 * (16 + 64 + 512 + 256))  # BatchNormalizations fused
    for column in PUBLISHED:
        if column.flash_mb is not None:
            assert round(flash_bytes(inferred_channels(column)) / 1e6, 1) == column.flash_mb


def test_published_rows_are_labelled_and_have_no_latency() -> None:
    rows = paper_rows()
    assert len(rows) == len(PUBLISHED) * len(DEVICES)
    assert {row.method for row in rows} == {"paper-reported"}
    assert all(row.latency_s is None for row in rows)


def test_what_cannot_be_and_why() -> None:
    verdicts = {
        (row.device, row.details["sparsity"]): contradictions(row, load_device(row.device)) for row in paper_rows()
    }
    for sparsity in (0.10, 0.25, 0.50, 0.70):
        (flash,) = verdicts["arduino-nano-33-ble", sparsity]
        assert flash.startswith("flash: ")
        assert "of 1 MB that the chip has" in flash
        (ram,) = verdicts["jetson-nano", sparsity]
        assert "less than any process on Linux takes" in ram
        assert verdicts["esp-eye", sparsity] == []
    assert "at least 1.2 MB" in verdicts["arduino-nano-33-ble", 0.25][0]


def test_findings_on_the_whole() -> None:
    (same,) = findings(paper_rows())
    assert "4 of 4 columns" in same
    assert findings([row for row in paper_rows() if row.device == "esp-eye"]) == []


def test_inference_is_one_line_per_column() -> None:
    lines = inference()
    assert [line.split(":")[0] for line in lines] == ["10%", "25%", "50%", "70%"]
    assert "15 of 16 channels" in lines[0]
