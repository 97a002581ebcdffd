"""Equal bytes of an encoder of sentences: python -m benchmarks.equal_bytes.encoder --model FILE --text FILE.

One model dense and folded, each in float32, int8 (`fold --dtype int8`) and int4 (onnxruntime's MatMulNBitsQuantizer,
blocks of 32, products and tables), and folded on top of its int4 file. Sentences are those of
`benchmarks.language_models`: is the nearest one still the nearest, and how do all similarities correlate by rank?
Nothing is shown to a fold. Files and rows lie in the work folder and are not made again.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import onnx

import onnxfold
from benchmarks.language_models.subjects import Encoder
from benchmarks.language_models.text import LENGTH, WINDOWS

_PAGE = Path(__file__).resolve().parents[1] / "equal_bytes_encoder.md"
_DTYPES = ("float32", "int8", "int4")
_BLOCK = 32


def main() -> None:
    """Make files, measure them, write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="The float32 model; tokenizer.json lies beside it.")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("equal_bytes_encoder"))
    parser.add_argument("--sparsities", type=float, nargs="*", default=[0.1, 0.2])
    parser.add_argument("--samples", type=int, help="Sequences of 64 tokens; by default as many as a fold takes.")
    parser.add_argument("--out", type=Path, default=_PAGE)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    subject = Encoder(args.model, args.model.stem, args.text, 0, front=(WINDOWS, LENGTH))
    store = args.work / "rows.json"
    rows: dict[str, Any] = json.loads(store.read_text()) if store.exists() else {}
    shown: dict[str, Any] = {}
    for name, path in files(args.model, args.work, args.sparsities, args.samples):
        if name not in rows:
            rows[name] = {"bytes": path.stat().st_size, "scores": subject.judged(path)}
            store.write_text(json.dumps(rows, indent=1))
        shown[name] = rows[name]
        print(name, rows[name], flush=True)
    args.out.write_text(page(args.model.name, shown), encoding="utf-8")


def files(model: Path, folder: Path, sparsities: Sequence[float], samples: int | None) -> Iterator[tuple[str, Path]]:
    """Yield the name and the file of every variant, the dense one first."""
    for sparsity in (0.0, *sparsities):
        called = f"folded, {sparsity:.0%} of the weights removed" if sparsity else "dense"
        floats = model if not sparsity else folder / f"folded_{100 * sparsity:.0f}.onnx"
        if not floats.exists():
            onnxfold.fold(model, sparsity, samples=samples, verify=False).save(floats)
        for dtype in _DTYPES:
            path = floats if dtype == "float32" else folder / f"{dtype}_{100 * sparsity:.0f}.onnx"
            if not path.exists() and dtype == "int8":
                onnxfold.fold(model, sparsity, dtype="int8", samples=samples, verify=False).save(path)
            elif not path.exists():
                onnx.save(in_four_bits(floats), path)
            yield called if dtype == "float32" else f"{called} + {dtype}", path
    for sparsity in sparsities:
        path = folder / f"int4_folded_{100 * sparsity:.0f}.onnx"
        if not path.exists():
            words = model.with_name("tokenizer.json")
            quantised = folder / "int4_0.onnx"
            onnxfold.fold(quantised, sparsity, samples=samples, tokenizer=words, verify=False).save(path)
        yield f"int4, then folded, {sparsity:.0%}", path


def in_four_bits(model: Path) -> onnx.ModelProto:
    """Return a model whose products and tables are of four bits."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(
        onnx.load(str(model)), bits=4, block_size=_BLOCK, is_symmetric=True, op_types_to_quantize=("MatMul", "Gather")
    )
    quantizer.process()
    made: onnx.ModelProto = quantizer.model.model
    return made


def page(model: str, rows: dict[str, Any]) -> str:
    """Return the page."""
    texts = list(next(iter(rows.values()))["scores"])
    head = "".join(f"| {name}: nearest kept | rank correlation " for name in texts)
    lines = [f"| {model} | bytes {head}|", "|---" + "|---:" * (1 + 2 * len(texts)) + "|"]
    for name, row in rows.items():
        cells = "".join(f"| {s['kept']:.3f} | {s['rank']:.4f} " for s in (row["scores"][text] for text in texts))
        lines.append(f"| {name} | {row['bytes']:,} {cells}|")
    return "\n".join([
        "# Equal bytes: an encoder of sentences", "",
        f"Written by `python -m benchmarks.equal_bytes.encoder --model {model} --text FILE` on "
        f"{datetime.now(UTC):%Y-%m-%d}. int8 is `fold --dtype int8`; int4 are MatMulNBits and GatherBlockQuantized in "
        f"blocks of {_BLOCK}, symmetric, by onnxruntime's quantiser; no data.", "", *lines, "",
    ])  # fmt: skip


if __name__ == "__main__":
    main()
