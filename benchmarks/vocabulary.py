"""Fewer words, narrower layers, or both: what a decoder or an encoder loses on two texts, beside its size.

Usage: python -m benchmarks.vocabulary --decoder DIR|--encoder DIR --text FILE.txt [--keep N|latin,common|text ...]
           [--fold] [--sparsity S ...] [--characters N] [--name NAME] [--rows FILE.json] [--page FILE.md]

DIR is a folder as onnxruntime-genai's builder or optimum writes it. A decoder is judged by bits per byte, which count
what is written: a text that takes more tokens after words went pays for all of them. An encoder is judged by the part
of 600 sentences whose nearest one, by the mean of the states, is that of the original.

`--keep text` keeps the words of the first half of the text; the second half is judged, and Python's own reference.
Every `--keep` is a row; with `--fold`, a fold of the original to the same number of weights (fold-ls, no data) is
another. Every `--sparsity` is a fold to that size, of the original and of the model with the words of each `--keep`.
A fold of SmolLM2-135M takes 2 to 4 GB and some minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

import onnxfold
from benchmarks.language_models.text import REFERENCE, reference, sentences
from onnxfold.fidelity.continuation import TextRequest, read_windows
from onnxfold.graph.files.load import load
from onnxfold.graph.run.session import Session
from onnxfold.inputs.tokens.interface import token_interface
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
    judged: dict[str, float]  # by text: bits per byte of a decoder, nearest neighbours kept of an encoder, in per cent
    tokens: dict[str, float]  # tokens per 100 bytes by text
    seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Trim, fold, judge, keep rows, write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decoder", type=Path)
    parser.add_argument("--encoder", type=Path)
    parser.add_argument("--name", default="a model", help="of the network in the page")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--keep", nargs="*", default=[])
    parser.add_argument("--fold", action="store_true")
    parser.add_argument("--sparsity", type=float, nargs="*", default=[])
    parser.add_argument("--characters", type=int, default=_CHARACTERS)
    parser.add_argument("--rows", type=Path, default=_ROWS)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args(arguments)
    kept: dict[str, dict[str, Any]] = json.loads(options.rows.read_text()) if options.rows.exists() else {}
    if options.decoder is not None or options.encoder is not None:
        if options.text is None:
            parser.error("--decoder and --encoder need --text")
        for row in measured(options):
            print(json.dumps(asdict(row)), flush=True)
            kept.setdefault(options.name, {})[row.model] = asdict(row)
            options.rows.write_text(json.dumps(kept, indent=1) + "\n")
    if options.page is not None:
        options.page.write_text(page({n: [Row(**row) for row in rows.values()] for n, rows in kept.items()}))
    return 0


def measured(options: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of a request."""
    lines = options.text.read_text(encoding="utf-8")
    front, behind = lines[: len(lines) // 2], lines[len(lines) // 2 :]
    whole = {options.text.name.split(".")[0]: behind, REFERENCE: reference()}
    judge: Judge = Decoder(whole, options.characters) if options.encoder is None else Encoder(whole, options.encoder)
    source = options.encoder or options.decoder
    with TemporaryDirectory() as place:
        seen = Path(place) / "front.txt"
        seen.write_text(front, encoding="utf-8")
        yield judge.row("original", source, None, 0.0)

        def row(name: str, **request: Any) -> tuple[Row, float]:
            start = time.perf_counter()
            result = onnxfold.fold(source, cache=None, **request)
            with TemporaryDirectory(dir=place) as out:
                folder = result.save(Path(out) / "model")
                seconds = time.perf_counter() - start
                return judge.row(name, folder, result, seconds), result.report.sparsity

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


class Judge(ABC):
    """What judges models on texts."""

    @abstractmethod
    def judged(self, folder: Path) -> tuple[dict[str, float], dict[str, float]]:
        """Return, by text, what a folder is worth, read with its own tokenizer, and its tokens per 100 bytes."""

    def row(self, name: str, folder: Path, result: Any, seconds: float) -> Row:
        """Return the row of a folder."""
        judged, tokens = self.judged(folder)
        view = load(folder / "model.onnx")
        whole = sum(view.weight_size(w) for w in view.float_weight_names())
        parameters, removed = (
            (whole, 0.0) if result is None else (result.report.after.parameters, result.report.sparsity)
        )
        interface = token_interface(view)
        assert interface is not None
        return Row(name, interface.vocabulary, parameters, round(removed, 4), judged, tokens, round(seconds, 1))


@dataclass(frozen=True)
class Decoder(Judge):
    """Bits per byte of texts."""

    texts: dict[str, str]
    characters: int

    def judged(self, folder: Path) -> tuple[dict[str, float], dict[str, float]]:
        """Return the bits per byte."""
        model = folder / "model.onnx"
        view = load(model)
        session, tokenizer = Session(model, counted=view), read_tokenizer(folder / "tokenizer.json")
        bits, tokens = {}, {}
        for called, whole in self.texts.items():
            text = whole[: self.characters]
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
        return bits, tokens


@dataclass(frozen=True)
class Encoder(Judge):
    """Sentences whose nearest one stays."""

    texts: dict[str, str]
    original: Path

    def judged(self, folder: Path) -> tuple[dict[str, float], dict[str, float]]:
        """Return the part of the nearest neighbours that are those of the original, in per cent."""
        kept, tokens = {}, {}
        for name, text in self.texts.items():
            near = [self._nearest(place, sentences(text)) for place in (self.original, folder)]
            kept[name] = round(100.0 * float((near[0][0] == near[1][0]).mean()), 1)
            tokens[name] = near[1][1]
        return kept, tokens

    def _nearest(self, folder: Path, lines: list[str]) -> tuple[npt.NDArray[np.int64], float]:
        session, tokenizer = Session(folder / "model.onnx"), read_tokenizer(folder / "tokenizer.json")
        front, behind = tokenizer.frame
        rows, vectors = [tokenizer.ids(line) for line in lines], []
        for row in rows:
            ids = np.concatenate([front, row, behind]).astype(np.int64)[None]
            values = {"mask": np.ones_like(ids), "type": np.zeros_like(ids), "input_ids": ids}
            feeds = {info.name: next(v for k, v in values.items() if k in info.name) for info in session.inputs}
            mean = session.run(feeds)[0][0].mean(axis=0).astype(np.float64)
            vectors.append(mean / np.linalg.norm(mean))
        alike = np.array(vectors) @ np.array(vectors).T
        np.fill_diagonal(alike, -np.inf)
        size = sum(len(line.encode()) for line in lines)
        return alike.argmax(axis=1), round(100.0 * sum(map(len, rows)) / size, 2)


def page(tables: dict[str, list[Row]]) -> str:
    """Return the page, a table per model."""
    usage = "python -m benchmarks.vocabulary --decoder DIR --text FILE --keep ... --page benchmarks/vocabulary.md"
    parts = [f"# Fewer words beside narrower layers\n\nWritten by `{usage}`."]
    for name, rows in tables.items():
        parts += [f"## {name}", _table(rows)]
    return "\n\n".join(parts) + "\n"


def _table(rows: Sequence[Row]) -> str:
    names = list(rows[0].judged)
    head = ["model", "words", "weights", "removed", *names]
    head += [*(f"tokens per 100 bytes, {n}" for n in names), "s"]
    table = [head, ["---", *["---:"] * (len(head) - 1)]]
    for row in rows:
        cells = [row.model, f"{row.words:,}", f"{row.parameters:,}", f"{row.removed:.1%}"]
        cells += [f"{row.judged[n]:g}" for n in names] + [f"{row.tokens[n]:.1f}" for n in names]
        table.append([*cells, f"{row.seconds:.0f}"])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in table)


if __name__ == "__main__":
    sys.exit(main())
