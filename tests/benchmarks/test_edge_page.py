"""The page of the device benchmark: what stands beside what."""

from benchmarks.edge.page import render
from benchmarks.edge.results import Emulated, Variant
from onnxfold.edge_bench.result import BenchResult

VARIANTS = [
    Variant("net", "0%", "net_0", 1000, 0.0, 0.9),
    Variant("net", "50%", "net_50", 500, 0.5, 0.88),
    Variant("net", "fitted", "net_fitted", 400, 0.6, 0.87),
]
ROWS = [
    BenchResult(
        model="net_0", device="arduino-nano-33-ble", method="estimated-latency", status="does-not-fit",
        reason="does not fit: needs 3.91 MB flash", ram_bytes=64 << 10, flash_bytes=4 << 20,
    ),
    BenchResult(
        model="net_50", device="arduino-nano-33-ble", method="estimated-latency", latency_low_s=0.1, latency_high_s=0.2,
        basis="medium confidence", ram_bytes=32 << 10, flash_bytes=2 << 20,
    ),
    BenchResult(
        model="net_50", device="arduino-nano-33-ble", method="emulated-instructions", instructions=12_300_000,
        ram_bytes=33 << 10, flash_bytes=3 << 20,
    ),
    BenchResult(model="net_0", device="host", method="measured-device", runtime="onnxruntime 1", latency_s=0.001),
    BenchResult(model="net_50", device="host", method="measured-device", runtime="onnxruntime 1", latency_s=0.0005),
]  # fmt: skip
EMULATED = Emulated("net_fitted", 500, 0.87, 0.87, 3e-7, 12_300_000)


def line(page: str, title: str) -> list[str]:
    (found,) = [text for text in page.splitlines() if text.startswith(f"| {title} |")]
    return [cell.strip() for cell in found.strip("|").split("|")[1:]]


def test_every_cell_stands_under_its_sparsity() -> None:
    page = render(VARIANTS, ROWS, EMULATED)
    assert line(page, "") == ["0%", "50%", "fitted"]
    assert line(page, "RAM as published") == ["", "48.0 K", ""]
    assert line(page, "accuracy, 10,000 test images") == ["90.00%", "88.00%", "87.00%"]
    assert line(page, "**arduino-nano-33-ble**: latency, estimated") == ["does not fit", "100 to 200 ms", ""]
    assert line(page, "arduino-nano-33-ble: flash, .tflite") == ["4.00 M", "2.00 M", ""]
    assert line(page, "arduino-nano-33-ble: instructions") == ["", "12.30 M", ""]
    assert line(page, "arduino-nano-33-ble: RAM, generated C") == ["", "33.0 K", ""]
    assert line(page, "**host**, onnxruntime 1: latency") == ["1 ms", "0.5 ms", ""]


def test_what_is_published_is_judged_and_inference_is_called_so() -> None:
    page = render(VARIANTS, ROWS, EMULATED)
    assert page.count("**impossible**") == 8
    assert "**Inference, not fact**" in page
    assert "87.00% of the first 500 Fashion-MNIST test images right in the emulator" in page
    assert "does not fit: needs 3.91 MB flash" in page


def test_every_row_stands_in_the_last_table() -> None:
    piped = BenchResult(model="a|b", device="host", method="measured-device", latency_s=0.012, flash_bytes=3 << 20)
    lines = render(VARIANTS, [piped, *ROWS], EMULATED).splitlines()
    start = lines.index("## All rows")
    assert lines[start + 2 : start + 5] == [
        "| model | device | how | runtime | latency | instr. | RAM | flash | error |",
        "|---|---|---|---|---:|---:|---:|---:|---:|",
        "| a\\|b | host | measured-device |  | 12 ms |  |  | 3.00 M |  |",
    ]
