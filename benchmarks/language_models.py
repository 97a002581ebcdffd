"""Perplexity of decoders, and similarities of sentences of encoders, after folds.

Usage: python -m benchmarks.language_models --text FILE [--decoder MODEL.onnx] [--encoder MODEL.onnx] [--page FILE.md]
                                            [--sparsity S ...] [--methods NAME ...] [--windows N]

Each model has its tokenizer.json beside it. The text serves no fold, except in the rows "fold-ls on text": their
fold sees the front of the text, 24 windows of 512 tokens, and perplexity is measured behind them. Sentences are the
first 600 lines of 40 to 300 characters; the mean of the states of a sentence, brought to length one, stands for it.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import spearmanr

import onnxfold
from benchmarks.coverage.text import table_row
from onnxfold.fidelity.comparison import compare
from onnxfold.graph.session import Session
from onnxfold.inputs.tokens.tokenizer import read_tokenizer

METHODS = ("fold-ls", "fold-ls on text", "fold-ar", "prune-l2")
_ON_TEXT, _WINDOWS, _LENGTH = "fold-ls on text", 24, 512
_SENTENCES, _SHORTEST, _LONGEST = 600, 40, 300
_MOST_TOKENS = 256

Vectors = npt.NDArray[np.float64]
Measure = Callable[[Path], list[str]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Fold, measure, print rows as they are done, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--decoder", type=Path)
    parser.add_argument("--encoder", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--sparsity", type=float, nargs="+", default=[0.1, 0.2])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--windows", type=int, default=20)
    options = parser.parse_args(arguments)
    lines = [
        "# Language models",
        "",
        "Reproduce with `python -m benchmarks.language_models` (its --help says how).",
        "",
    ]
    if options.decoder:
        front, rest = _halves(options.text, options.decoder)
        columns = ["perplexity", "of the original's"]
        lines += _table(options, options.decoder, front, columns, _perplexity(options.decoder, rest, options.windows))
    if options.encoder:
        columns = ["nearest neighbour kept", "Spearman's correlation"]
        lines += _table(options, options.encoder, None, columns, _similarities(options.encoder, options.text))
    if options.page:
        options.page.write_text("\n".join(lines) + "\n")
    return 0


def _table(
    options: argparse.Namespace, model: Path, front: npt.NDArray[np.int64] | None, columns: list[str], measure: Measure
) -> list[str]:
    head = ["method", "weights removed", "inputs", *columns, "s"]
    lines = [f"## {model.parent.name}/{model.name}", "", table_row(head), table_row(["---"] * len(head))]
    print("\n".join(lines), flush=True)
    for row in _rows(options, model, front, measure):
        lines.append(table_row(row))
        print(lines[-1], flush=True)
    return [*lines, ""]


def _rows(
    options: argparse.Namespace, model: Path, front: npt.NDArray[np.int64] | None, measure: Measure
) -> Iterator[list[str]]:
    for method in options.methods:
        if method == _ON_TEXT and front is None:
            continue
        for sparsity in options.sparsity:
            given: dict[str, Any] = {"calibration": {"input_ids": front}} if method == _ON_TEXT else {}
            start = time.perf_counter()
            result = onnxfold.fold(model, sparsity, method=method.split()[0], verify=False, **given)
            seconds = time.perf_counter() - start
            with TemporaryDirectory() as place:
                path = Path(place) / "model.onnx"
                result.save(path)
                found = measure(path)
            inputs = result.report.inputs
            seen = "none" if inputs is None else inputs.kind
            yield [method, f"{result.report.sparsity:.1%}", seen, *found, f"{seconds:.0f}"]


# -- decoders ----------------------------------------------------------------------------------------


def _halves(text: Path, model: Path) -> tuple[npt.NDArray[np.int64], str]:
    """Return the ids of the front of a text, in windows, and the text behind it."""
    tokenizer, whole = read_tokenizer(model.parent / "tokenizer.json"), text.read_text(encoding="utf-8")
    lines, wanted = whole.splitlines(keepends=True), _WINDOWS * _LENGTH
    used, ids = 0, np.zeros(0, np.int64)
    while len(ids) < wanted and used < len(lines):
        used += 100
        ids = np.asarray(tokenizer.ids("".join(lines[:used])), np.int64)
    return ids[:wanted].reshape(-1, _LENGTH), "".join(lines[used:])


def _perplexity(dense: Path, rest: str, windows: int) -> Measure:
    def measure(folded: Path) -> list[str]:
        with TemporaryDirectory() as place:
            text = Path(place) / "rest.txt"
            text.write_text(rest, encoding="utf-8")
            found = compare(dense, folded, text=text, tokenizer=dense.parent / "tokenizer.json", windows=windows)
        assert found.perplexity is not None
        return [
            f"{found.perplexity.a:.2f} -> {found.perplexity.b:.2f}",
            f"{found.perplexity.b / found.perplexity.a:.3f}",
        ]

    return measure


# -- encoders ----------------------------------------------------------------------------------------


def _similarities(dense: Path, text: Path) -> Measure:
    tokenizer = read_tokenizer(dense.parent / "tokenizer.json")
    front, behind = tokenizer.around
    lines = [line.strip() for line in text.read_text(encoding="utf-8").splitlines()]
    lines = [line for line in lines if _SHORTEST <= len(line) <= _LONGEST][:_SENTENCES]
    most = _MOST_TOKENS - len(front) - len(behind)
    sentences = [np.concatenate([front, tokenizer.ids(line)[:most], behind]).astype(np.int64) for line in lines]
    whole = _vectors(dense, sentences)

    def measure(folded: Path) -> list[str]:
        a, b = (found @ found.T for found in (whole, _vectors(folded, sentences)))
        pairs = np.triu_indices(len(a), 1)
        rank = float(spearmanr(a[pairs], b[pairs])[0])
        for similarities in (a, b):
            np.fill_diagonal(similarities, -np.inf)
        return [f"{(a.argmax(axis=1) == b.argmax(axis=1)).mean():.3f}", f"{rank:.4f}"]

    return measure


def _vectors(model: Path, sentences: Sequence[npt.NDArray[np.int64]]) -> Vectors:
    session = Session(model)
    found = []
    for ids in sentences:
        values = {"mask": np.ones_like(ids[None]), "type": np.zeros_like(ids[None]), "input_ids": ids[None]}
        feeds = {info.name: next(v for k, v in values.items() if k in info.name) for info in session.inputs}
        mean = session.run(feeds)[0][0].mean(axis=0).astype(np.float64)
        found.append(mean / np.linalg.norm(mean))
    return np.array(found)


if __name__ == "__main__":
    sys.exit(main())
