"""The Markdown page of the device benchmark: published figures, possible figures, measurements."""

from collections.abc import Sequence

from benchmarks.edge.paper_table import DEVICES, PUBLISHED, contradictions, findings, inference, paper_rows
from benchmarks.edge.results import Emulated, Variant
from onnxfold.budget.devices import load_device
from onnxfold.edge_bench.result import COLUMNS, BenchResult, bytes_text, cells, latency_text, notes

#: Columns of names, in front of those of numbers.
_NAMES = 4
_COMMAND = "python -m benchmarks.edge --data DIR"


def render(variants: Sequence[Variant], rows: Sequence[BenchResult], found: Emulated) -> str:
    """Return the page.

    Parameters
    ----------
    variants : sequence of Variant
        The folded networks.
    rows : sequence of BenchResult
        Their rows on all devices; models are called like the variants' files.
    found : Emulated
        The network that was run on test images in the emulator.
    """
    parts = [
        "# Edge devices\n",
        f"Written by `{_COMMAND}`. K = 1024 bytes, M = 1024 K.\n",
        *_ours(variants, rows),
        *_fitted(found),
        *_published(),
        "## All rows\n",
        *_all_rows(rows),
        "",
        "<details><summary>What they rest on</summary>\n",
        *[f"- {line}" for line in notes(rows)],
        "\n</details>",
    ]
    return "\n".join(parts) + "\n"


def _all_rows(rows: Sequence[BenchResult]) -> list[str]:
    head = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * _NAMES + "---:|" * (len(COLUMNS) - _NAMES)]
    escaped = ([text.replace("|", "\\|") for text in cells(row)] for row in rows)
    return [*head, *(f"| {' | '.join(texts)} |" for texts in escaped)]


def _ours(variants: Sequence[Variant], rows: Sequence[BenchResult]) -> list[str]:
    lines = [
        "## Side by side\n",
        "Published RAM and flash are those of a model called LeNet5, the same for every board. Ours: RAM and flash of "
        "the exported TFLite file in TensorFlow Lite Micro (arena, input and output), and of the generated "
        "C as it is linked for the board. No board was connected: latencies are estimates, ranges of what the notes "
        "at the end say, and instructions were counted in emulation.\n",
        _host(rows),
    ]
    for network in dict.fromkeys(v.network for v in variants):
        own = [v for v in variants if v.network == network]
        lines += [f"### {network}\n", *_line("", [v.label for v in own], head=True)]
        lines += _line("weights removed", [f"{v.sparsity:.1%}" for v in own])
        lines += _line("parameters", [f"{v.parameters:,}" for v in own])
        lines += _line("accuracy, 10,000 test images", [f"{v.accuracy:.2%}" for v in own])
        published = {f"{c.sparsity:.0%}": c for c in PUBLISHED}
        lines += _line(
            "RAM as published", [f"{published[v.label].ram_k} K" if v.label in published else "" for v in own]
        )
        flash = {label: "" if c.flash_mb is None else f"{c.flash_mb} MB" for label, c in published.items()}
        lines += _line("flash as published", [flash.get(v.label, "") for v in own])
        for device in dict.fromkeys(row.device for row in rows):
            lines += _device(device, own, rows)
        lines.append("")
    return lines


def _host(rows: Sequence[BenchResult]) -> str:
    row = next((r for r in rows if r.device == "host" and r.details), None)
    if row is None:
        return ""
    processor, system = (row.details.get(key, "unknown") for key in ("processor", "system"))
    return f"The host: {processor}, one thread, {system}, shared with other work.\n"


def _device(device: str, variants: Sequence[Variant], rows: Sequence[BenchResult]) -> list[str]:
    def cells(method: str, text: str, runtime: str = "") -> list[str]:
        found = []
        for variant in variants:
            own = [r for r in rows if (r.model, r.device, r.method) == (variant.model, device, method)]
            row = next((r for r in own if r.runtime.startswith(runtime)), None)
            found.append("" if row is None else _cell(row, text))
        return found

    if device == "host":
        runtimes = dict.fromkeys(r.runtime for r in rows if r.device == device and r.runtime)
        return [
            line
            for runtime in runtimes
            for line in _line(f"**host**, {runtime}: latency", cells("measured-device", "latency", runtime))
        ]
    lines = _line(f"**{device}**: latency, estimated", cells("estimated-latency", "latency"))
    lines += _line(f"{device}: RAM, TFLM", cells("estimated-latency", "ram"))
    lines += _line(f"{device}: flash, .tflite", cells("estimated-latency", "flash"))
    for text, title in (("instructions", "instructions"), ("ram", "RAM, generated C"), ("flash", "flash, generated C")):
        emulated = cells("emulated-instructions", text)
        if any(emulated):
            lines += _line(f"{device}: {title}", emulated)
    return lines


def _cell(row: BenchResult, text: str) -> str:
    if text == "latency":
        return latency_text(row)
    if text == "instructions":
        return f"{row.instructions / 1e6:.2f} M" if row.instructions is not None else latency_text(row)
    return bytes_text(row.ram_bytes if text == "ram" else row.flash_bytes)


def _fitted(found: Emulated) -> list[str]:
    return [
        "## In the emulated Cortex-M4F\n",
        f"`{found.model}`, as firmware of generated C that is linked for 1 MB of flash and 256 KB of RAM "
        "(`fitted`: what `onnxfold fold lenet5_2x.onnx nano.onnx --device arduino-nano-33-ble` writes):\n",
        f"- {found.accuracy:.2%} of the first {found.images:,} Fashion-MNIST test images right in the emulator, "
        f"{found.reference_accuracy:.2%} in onnxruntime;",
        f"- outputs differ from onnxruntime's by at most {found.max_relative_error:.1e} of the largest one;",
        f"- {found.instructions / 1e6:.2f} M instructions per inference.\n",
    ]


def _published() -> list[str]:
    rows = paper_rows()
    lines = ["## What of the published table can be\n", "| model | device | RAM | flash | verdict |", "|---" * 5 + "|"]
    for row in rows:
        column = next(c for c in PUBLISHED if c.sparsity == row.details["sparsity"])
        flash = "between the ends" if column.flash_mb is None else f"{column.flash_mb} MB"
        reasons = contradictions(row, load_device(row.device))
        verdict = f"**impossible**: {'; '.join(reasons)}" if reasons else "possible"
        lines.append(f"| {row.model} | {row.device} | {column.ram_k} K | {flash} | {verdict} |")
    return [
        *lines,
        "",
        *[f"- {line}" for line in findings(rows)],
        f"- There is no column for 0 %, the same figures stand for {len(DEVICES)} boards, and latencies are not "
        "monotone in the sparsity.",
        "",
        "**Inference, not fact**: the table is a desk estimate for a LeNet5-2x, RAM being the first convolution's "
        "output, the pooled output and 2.08 K, and flash 4 bytes per weight:\n",
        *[f"- {line}" for line in inference()],
        "",
    ]


def _line(title: str, cells: Sequence[str], *, head: bool = False) -> list[str]:
    line = f"| {title} | {' | '.join(cells)} |"
    return [line, "|---" + "|---:" * len(cells) + "|"] if head else [line]
