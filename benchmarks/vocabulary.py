"""Fewer words, narrower layers, or both: bits per byte of a decoder on two texts, beside its size.

Usage: python -m benchmarks.vocabulary --decoder DIR --text FILE.txt [--keep N|latin,common|text ...] [--fold]
           [--sparsity S ...] [--characters N] [--rows FILE.json] [--page FILE.md]

DIR is a folder as onnxruntime-genai's builder writes it. `--keep text` keeps the words of the first half of the text;
the second half is judged, and Python's own reference. Every `--keep` is a row; with `--fold`, a fold of the original to
the same number of weights (fold-ls, no data) is another, and every `--sparsity` is a fold to that size, of the original
and of the model with the words of each `--keep`. Bits per byte count what is written, so a text that takes more tokens
after words went pays for all of them. A fold of SmolLM2-135M takes 2 to 4 GB and some minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnxfold
from benchmarks.language_models.text import REFERENCE, reference
from onnxfold.fidelity.continuation import TextRequest, read_windows
from onnxfold.graph.files.load import load
from onnxfold.graph.run.session import Session
from onnxfold.inputs.tokens.tokenizer import read_tokenizer
from onnxfold.progress import silent

_WINDOW = 512
#: Characters of each text that are judged, about 14 windows of 512 tokens.
_CHARACTERS = 30_000
_ALL = 1_000_000
_ROWS = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class Row:
    """A model."""

    model: str
    words: int
    parameters: int
    removed: float
    bits: dict[str, float]  # bits per byte by text
    tokens: dict[str, float]  # tokens per 100 bytes by text
    seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Trim, fold, judge, keep rows, write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decoder", type=Path)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--keep", nargs="*", default=[])
    parser.add_argument("--fold", action="store_true")
    parser.add_argument("--sparsity", type=float, nargs="*", default=[])
    parser.add_argument("--characters", type=int, default=_CHARACTERS)
    parser.add_argument("--rows", type=Path, default=_ROWS)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args(arguments)
    rows = {row["model"]: Row(**row) for row in json.loads(options.rows.read_text())} if options.rows.exists() else {}
    if options.decoder is not None:
        if options.text is None:
            parser.error("--decoder needs --text")
        for row in measured(options):
            print(json.dumps(asdict(row)), flush=True)
            rows[row.model] = row
            options.rows.write_text(json.dumps([asdict(row) for row in rows.values()], indent=1) + "\n")
    if options.page is not None:
        options.page.write_text(page(list(rows.values())))
    return 0


def measured(options: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of a request."""
    lines = options.text.read_text(encoding="utf-8")
    front, behind = lines[: len(lines) // 2], lines[len(lines) // 2 :]
    texts = {
        options.text.name.split(".")[0]: behind[: options.characters],
        REFERENCE: reference()[: options.characters],
    }
    with TemporaryDirectory() as place:
        seen = Path(place) / "front.txt"
        seen.write_text(front, encoding="utf-8")
        yield judge("original", options.decoder, texts, None, 0.0)

        def row(name: str, **request: Any) -> tuple[Row, float]:
            start = time.perf_counter()
            result = onnxfold.fold(options.decoder, cache=None, **request)
            with TemporaryDirectory(dir=place) as out:
                folder = result.save(Path(out) / "model")
                seconds = time.perf_counter() - start
                return judge(name, folder, texts, result, seconds), result.report.sparsity

        for keep in options.keep:
            value: Any = seen if keep == "text" else keep
            name = "words of the text's first half" if keep == "text" else f"words: {keep}"
            made, removed = row(name, vocabulary=value)
            yield made
            if options.fold:
                yield row(f"fold-ls to the size of {name}", sparsity=round(removed, 4))[0]
            for sparsity in options.sparsity:
                yield row(f"{name}, then fold-ls to {sparsity:g}", vocabulary=value, sparsity=sparsity)[0]
        for sparsity in options.sparsity:
            yield row(f"fold-ls to {sparsity:g}", sparsity=sparsity)[0]


def judge(name: str, folder: Path, texts: dict[str, str], result: Any, seconds: float) -> Row:
    """Return the row of a folder, read with its own tokenizer."""
    model = folder / "model.onnx"
    view = load(model)
    session, tokenizer = Session(model, counted=view), read_tokenizer(folder / "tokenizer.json")
    bits, tokens = {}, {}
    for called, text in texts.items():
        with TemporaryDirectory() as place:
            path = Path(place) / "text.txt"
            path.write_text(text, encoding="utf-8")
            request = TextRequest(path, tokenizer.path, _WINDOW, _ALL)
            continuation, meter, _ = read_windows([session], [view], request, model, silent)
        record = replace(continuation, writes=False).complete(meter.report(called), meter, called).perplexity
        assert record is not None
        assert record.bits_per_byte is not None
        bits[called] = round(record.bits_per_byte[0], 4)
        tokens[called] = round(100.0 * len(tokenizer.ids(text)) / len(text.encode()), 2)
    size = None if result is None else result.report.after
    parameters = sum(view.weight_size(w) for w in view.float_weight_names()) if size is None else size.parameters
    removed = 0.0 if result is None else result.report.sparsity
    words = json.loads((folder / "genai_config.json").read_text())["model"]["vocab_size"]
    return Row(name, words, parameters, round(removed, 4), bits, tokens, round(seconds, 1))


def page(rows: Sequence[Row]) -> str:
    """Return the page."""
    names = list(rows[0].bits)
    head = ["model", "words", "weights", "removed", *(f"bits per byte, {n}" for n in names)]
    head += [*(f"tokens per 100 bytes, {n}" for n in names), "s"]
    table = [head, ["---", *["---:"] * (len(head) - 1)]]
    for row in rows:
        cells = [row.model, f"{row.words:,}", f"{row.parameters:,}", f"{row.removed:.1%}"]
        cells += [f"{row.bits[n]:.4f}" for n in names] + [f"{row.tokens[n]:.1f}" for n in names]
        table.append([*cells, f"{row.seconds:.0f}"])
    lines = "\n".join(f"| {' | '.join(cells)} |" for cells in table)
    usage = "python -m benchmarks.vocabulary --decoder DIR --text FILE --keep ... --page benchmarks/vocabulary.md"
    return f"# Fewer words beside narrower layers\n\nWritten by `{usage}`.\n\n{lines}\n"


if __name__ == "__main__":
    sys.exit(main())
