"""Language models after folds and after their rivals: perplexity, similarities, what they write, and how fast.

Usage: python -m benchmarks.language_models --text FILE [--decoder DIR|MODEL.onnx] [--encoder MODEL.onnx] [--name NAME]
           [--methods NAME ...] [--sparsity S ...] [--inputs none text ...] [--option NAME=VALUE ...] [--windows N]
           [--examples] [--speed] [--rows FILE.json] [--page FILE.md]

Every method of the package is measured that is named, and any option of a fold can be given (`--option
allocation=uniform`). Rows are kept in a JSON file, benchmarks/language_models.json by default: a row that is measured
again takes the place of the old one. `--page` writes the page, with figures beside it, from all rows of that file; with
no model it does nothing else. A tokenizer.json lies in the folder of each model.

A fold of SmolLM2 takes 2 to 4 GB and some minutes. With `--inputs none`, it is shown nothing; with `text`, 24 windows
of 512 tokens, the front of the text. What is measured always stands behind that front. A fold that is refused is a
line of the output and no row; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import ast
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import groupby, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnxfold
from benchmarks.language_models.figure import draw
from benchmarks.language_models.generation import speed, written
from benchmarks.language_models.page import render
from benchmarks.language_models.row import Row, Rows
from benchmarks.language_models.subjects import Decoder, Encoder, Subject
from benchmarks.language_models.text import LENGTH, WINDOWS
from onnxfold.errors import OnnxFoldError

METHODS = ("fold-ls", "fold-ar", "flap", "wanda-sp", "prune-l2", "slicegpt", "shortgpt")
_ROWS = Path(__file__).parents[1] / "language_models.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Fold, measure, keep and print rows, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--decoder", type=Path)
    parser.add_argument("--encoder", type=Path)
    parser.add_argument("--name", help="of the model in the table; by default that of its file or folder")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), metavar="NAME")
    parser.add_argument("--sparsity", type=float, nargs="+", default=[0.1, 0.2])
    parser.add_argument("--inputs", nargs="+", choices=("none", "text"), default=["none"])
    parser.add_argument("--option", type=_option, nargs="+", default=[], metavar="NAME=VALUE")
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--front", type=int, nargs=2, default=[WINDOWS, LENGTH], metavar=("WINDOWS", "TOKENS"))
    parser.add_argument("--examples", action="store_true", help="keep what a decoder writes")
    parser.add_argument("--speed", action="store_true", help="tokens per second of a decoder's folder in genai")
    parser.add_argument("--rows", type=Path, default=_ROWS)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args(arguments)
    rows, failed = Rows(options.rows), False
    for subject in _subjects(parser, options):
        asked = product(options.sparsity, options.inputs, options.methods)
        for sparsity, inputs, method in asked:
            try:
                row = _measured(subject, method, sparsity, rows, options, on_text=inputs == "text")
            except OnnxFoldError as error:
                failed = True
                print(f"{sparsity:.0%} {inputs} {method}: {error}", flush=True)
                continue
            rows.add(row)
            print(
                f"{row.asked:.0%} {inputs} {row.title}: {row.removed:.1%}, {row.scores}, {row.seconds:.0f} s",
                flush=True,
            )
    if options.page:
        write_page(rows, options.page)
    return int(failed)


def _option(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _subjects(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Iterator[Subject]:
    for kind, path in ((Decoder, options.decoder), (Encoder, options.encoder)):
        if path is not None:
            if options.text is None:
                parser.error("give --text, which models are judged by")
            yield kind(path, options.name or path.stem, options.text, options.windows, front=tuple(options.front))


def _measured(
    subject: Subject, method: str, sparsity: float, rows: Rows, options: argparse.Namespace, *, on_text: bool
) -> Row:
    """Fold and measure."""
    given = subject.given(on_text=on_text)
    start = time.process_time()
    result = onnxfold.fold(subject.path, sparsity, method=method, verify=False, **dict(options.option), **given)
    seconds = time.process_time() - start
    report = result.report
    with TemporaryDirectory() as place:
        target = Path(place) / ("folded" if subject.path.is_dir() else "folded.onnx")
        result.save(target)
        del result
        folded = target / "model.onnx" if target.is_dir() else target
        examples: list[str] = []
        if options.examples and subject.kind == "decoder":
            if subject.name not in rows.examples:
                rows.add(examples={subject.name: written(subject.model, subject.tokenizer)})
            examples = written(folded, subject.tokenizer)
        return Row(
            subject.name, subject.kind, method, dict(options.option), sparsity, on_text, report.sparsity,
            "nothing" if report.inputs is None else report.inputs.kind, subject.judged(folded), seconds,
            speed(subject.path, target) if options.speed and target.is_dir() else {}, examples,
        )  # fmt: skip


def write_page(rows: Rows, page: Path) -> None:
    """Write the page and its figures from rows."""
    figures = {}
    (page.parent / "figures").mkdir(exist_ok=True)
    for (kind, model), found in groupby(rows.rows, key=lambda row: (row.kind, row.model)):
        file = page.parent / "figures" / f"language_{kind}_{model}.svg"
        if draw(list(found), file):
            figures[model] = file.relative_to(page.parent)
    page.write_text(render(rows.rows, rows.examples, figures), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
