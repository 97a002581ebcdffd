"""The Markdown page: a table per network, and what follows from it."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.accuracy.store import Row
from benchmarks.equal_bytes.variants import SPARSITIES, TYPES

_COMMAND = "python -m benchmarks.equal_bytes --data DIR --models DIR"
_HOW = (
    "Bytes are those of the file. Milliseconds are of one image with one thread, every file of a network and runtime "
    "in turn; a ratio is the median over rounds of the ratio to the dense file within a round. ONNX int8 is `fold "
    "--dtype int8`: QDQ, run by onnxruntime, calibrated on the generated inputs of the fold; all folds of a network "
    "share these. TFLite is `export` of the dense and of the folded float32 file, int8 calibrated by ai-edge-quantizer "
    "on 64 dead leaves, run by LiteRT with XNNPACK."
)


def render(results: Mapping[str, Any]) -> str:
    """Return the page.

    Parameters
    ----------
    results : mapping
        `environment`, in words, and `rows` by key, each with network, runtime, sparsity, dtype, bytes, accuracy,
        images, ms, ratio, spread.
    """
    rows = list(results["rows"].values())
    networks = list(dict.fromkeys(row["network"] for row in rows))
    parts = ["# Equal bytes: fold, quantise, or both\n", f"Written by `{_COMMAND}`. {results['environment']}.\n", _HOW]
    for network in networks:
        own = [row for row in rows if row["network"] == network]
        parts += [f"\n## {network}\n", *_table(own), f"\n![{network}](figures/equal_bytes_{network}.png)"]
    parts += ["\n## Integer types\n", _WHY_TYPES, *_types(rows, networks)]
    return "\n".join(parts) + "\n"


def _table(rows: Sequence[Row]) -> list[str]:
    images = max(row["images"] for row in rows)
    head = f"| accuracy on {images:,} images (%) | ONNX bytes | accuracy | ms | of dense "
    lines = [head + "| TFLite bytes | accuracy | ms | of dense |", "|---" + "|---:" * 8 + "|"]
    for dtype in ("float32", "int8"):
        for sparsity in SPARSITIES:
            cells = [_cells(rows, runtime, sparsity, dtype) for runtime in ("onnx", "tflite")]
            lines.append(f"| {label(sparsity, dtype)} | {' | '.join(c for part in cells for c in part)} |")
    return lines


def label(sparsity: float, dtype: str) -> str:
    """Return what a variant is called."""
    folded = f"folded, {sparsity:.0%} of the weights removed" if sparsity else ""
    return " + ".join(filter(None, (folded, dtype if dtype != "float32" else ""))) or "dense"


def find(rows: Sequence[Row], runtime: str, sparsity: float, dtype: str) -> Row | None:
    """Return the row of a variant."""
    wanted = (runtime, sparsity, dtype)
    return next((r for r in rows if (r["runtime"], r["sparsity"], r["dtype"]) == wanted), None)


def _cells(rows: Sequence[Row], runtime: str, sparsity: float, dtype: str) -> list[str]:
    row = find(rows, runtime, sparsity, dtype)
    if row is None:
        return [""] * 4
    return [f"{row['bytes']:,}", f"{100 * row['accuracy']:.2f}", f"{row['ms']:.2f}", f"{row['ratio']:.2f}"]


_WHY_TYPES = (
    "The dense network in ONNX, activations and bits of the weights by the head of the column, all calibrated on the "
    "same inputs. `fold --dtype int8` writes the first. x86 CPUs without VNNI add products of pairs in 16 "
    "bits, which 8 bits of weight overflow; 7 do not.\n"
)


def _types(rows: Sequence[Row], networks: Sequence[str]) -> list[str]:
    lines = [f"| accuracy (%), time of dense | {' | '.join(TYPES)} |", "|---" + "|---:" * len(TYPES) + "|"]
    for network in networks:
        own = [row for row in rows if row["network"] == network]
        found = [find(own, "onnx", 0.0, name) for name in TYPES]
        cells = ["" if r is None else f"{100 * r['accuracy']:.2f}, {r['ratio']:.2f}" for r in found]
        lines.append(f"| {network} | {' | '.join(cells)} |")
    return lines
