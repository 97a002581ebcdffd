"""The command ``onnxfold compare``."""

from pathlib import Path
from typing import Any

import click

from onnxfold.commands import shared
from onnxfold.html_report.numbers import size_cells
from onnxfold.progress import ProgressBar
from onnxfold.report.comparison import THRESHOLDS, check_thresholds, failures_of
from onnxfold.terminal import Table, say, say_json, say_table


@click.command()
@click.argument("a", metavar="A.onnx|DIR", type=shared.PATH)
@click.argument("b", metavar="B.onnx|DIR", type=shared.PATH)
@click.option(
    "--data", type=shared.PATH, metavar="FILE.npz|DIR",
    help="Arrays named after the inputs, of which labels 'y' add the accuracy; or a folder of JPEG and PNG files, with "
    "--mean and --std.",
)  # fmt: skip
@click.option(
    "--text", type=shared.PATH, metavar="FILE",
    help="Compare language models on this text, and measure their perplexities: the front of it, in windows.",
)  # fmt: skip
@click.option(
    "--tokenizer",
    type=shared.PATH,
    metavar="FILE.json",
    help="Their tokenizer.  [default: tokenizer.json beside A.onnx]",
)
@click.option("--window", type=int, default=1024, metavar="N", help="Tokens of a window of --text.")
@click.option("--windows", type=int, default=24, metavar="N", help="Windows of --text at most.")
@shared.option("mean", "std", "channels")
@click.option("--seed", type=int, default=0, help="Seed of the generated inputs (without --data).")
@click.option(
    "--min-agreement", metavar="P",
    help="Exit with 1 unless the samples prove this top-1 agreement: 0.99 or 99%, with 95 % confidence.",
)  # fmt: skip
@click.option("--max-error", type=float, metavar="E", help="Exit with 1 if an output's relative error is above this.")
@click.option("--min-cosine", type=float, metavar="C", help="Exit with 1 if an output's mean cosine is below this.")
@click.option("--max-kl", type=float, metavar="K", help="Exit with 1 if the KL divergence of classes is above this.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@shared.option("threads", "max_memory")
@shared.common
@click.pass_context
def compare(context: click.Context, /, a: Path, b: Path, data: Path | None, as_json: bool, **options: Any) -> None:
    """Measure how close B.onnx is to A.onnx on the same inputs, and what both of them cost.

    A folder of a language model stands for the model in it.
    """
    from onnxfold import api

    limits = check_thresholds({name: options.pop(name) for name in THRESHOLDS})
    with ProgressBar() as tell:
        report = api.compare(a, b, data, progress=tell, **options)
    failures = failures_of(report.outputs, limits)
    if as_json:
        say_json({**report.to_dict(), "failures": failures})
    else:
        first, *lines = str(report).splitlines()
        say(first)
        if report.size_a is not None and report.size_b is not None:
            cells = size_cells(report.size_a, report.size_b, report.latency)
            say_table(Table("costs", ("", "A", "B", "removed"), cells, left=("",)))
            lines[:0] = [] if report.latency is None else [shared.latency_line(report.latency)]
        say(*lines)
    say(*(f"not met: {line}" for line in failures), error=True)
    if failures:
        context.exit(1)
