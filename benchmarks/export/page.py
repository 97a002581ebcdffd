"""The Markdown page of the export benchmark."""

import os
import platform
from importlib.metadata import version
from typing import Any

from benchmarks.export.runtimes import RUNTIMES, Row
from onnxfold.export.parity import TOLERANCE


def result_cell(row: Row, runtime: str) -> str:
    if row.refused:
        return "-"
    result = row.results.get(runtime)
    if result is None:
        return "not run"
    if "error" in result:
        return (
            str(result["error"])
            .split(" Failed to get")[0]
            .removeprefix("TFLM failed to allocate tensors ")
            .replace("|", "/")
        )
    error = result["max_rel_error"]
    return f"{error:.1e}" if error <= TOLERANCE else f"**{error:.1e}**"


def render(rows: list[Row], beside: list[dict[str, Any]]) -> str:
    """Return the page."""
    lines = [
        "# Exports to TFLite\n",
        "Reproduce with `python -m benchmarks.export` (its docstring says how to make the environments).\n",
        f"{platform.machine()}, {os.cpu_count()} cores, one thread; Python {platform.python_version()}, "
        f"ai-edge-litert {version('ai-edge-litert')}, tflite-runtime 2.14.0, onnxruntime "
        f"{version('onnxruntime')} with graph "
        "optimisations off.\n",
        "## Outputs\n",
        f"max |difference| / max |reference| over 16 synthetic inputs, tolerance {TOLERANCE:g}; **bold** is beyond it. "
        "*Spread* is how far the reference outputs lie apart over the inputs, relative to the largest: outputs are not "
        "constant. Networks are trained or have calibrated BatchNormalization statistics; *folded* "
        "has 50 % of the weights "
        "removed by fold-ar. Every network of the zoo is listed.\n",
    ]
    for runtime in RUNTIMES:
        ran = [r for r in rows if not r.refused and runtime in r.results]
        good = sum("error" not in r.results[runtime] and r.results[runtime]["max_rel_error"] <= TOLERANCE for r in ran)
        lines.append(f"- {runtime}: {good} of {len(ran)} files within the tolerance")
    lines.append(f"- refused by the writer or the fold: {sum(bool(r.refused) for r in rows)} of {len(rows)}\n")
    lines += ["| network | form | operators | TRANSPOSE | spread | " + " | ".join(RUNTIMES) + " |", "|---" * 8 + "|"]
    for row in rows:
        if row.refused:
            lines.append(f"| {row.name} | {row.form} | refused: {row.refused.replace('|', '/')} | | | | | |")
            continue
        cells = [str(sum(row.operators.values())), str(row.operators.get("TRANSPOSE", 0)), f"{row.spread:.2f}"]
        lines.append(
            f"| {row.name} | {row.form} | " + " | ".join([*cells, *(result_cell(row, r) for r in RUNTIMES)]) + " |"
        )
    if beside:
        lines += ["", *_beside(beside)]
    return "\n".join(lines) + "\n"


def _beside(rows: list[dict[str, Any]]) -> list[str]:
    loads = [r["load"] for r in rows]
    lines = [
        "## Beside onnx2tf\n",
        "Published layouts, 224 x 224. *Process* is the wall time of the whole program, start and "
        "imports included, for both "
        "tools; *conversion* is the call alone, with *memory* its peak above the imports, as a "
        "multiple of the .onnx file. "
        "Latency: ai-edge-litert, one thread, one image, median of three runs in turn. "
        f"The machine is shared: load average {min(loads):.1f} to {max(loads):.1f} meanwhile.\n",
        "| model | tool | process | peak of the process | conversion | memory | size | size - 4 "
        "bytes x weights | operators "
        "| TRANSPOSE | latency | max error |",
        "|---" * 12 + "|",
    ]
    for r in rows:
        inner = f"{r['inner_s']:.2f} s | {r['above_kb'] * 1024 / r['model_bytes']:.2f} x" if "inner_s" in r else "- | -"
        over = r["size"] - 4 * r["weights"]
        lines.append(
            f"| {r['model']} | {r['tool']} | {r['wall_s']:.2f} s | {r['peak_kb'] / 1024:.0f} MB | "
            f"{inner} | {r['size']:,} "
            f"| {over:+,} ({over / (4 * r['weights']):+.2%}) | {sum(r['operators'].values())} "
            f"| {r['operators'].get('TRANSPOSE', 0)} | {r['ms']:.2f} ms | {r['error']:.1e} |"
        )
    return lines
