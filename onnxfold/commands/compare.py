"""The command ``onnxfold compare``."""

from pathlib import Path
from typing import Any

import click

from onnxfold.commands.shared import (
    PATH,
    common,
    latency_line,
    max_memory,
    pixels,
    set_flags,
    size_cells,
    threads,
)
from onnxfold.progress import ProgressBar
from onnxfold.terminal import Table, say, say_json, say_table


@click.command()
@click.argument("a", metavar="A.onnx|DIR", type=PATH)
@click.argument("b", metavar="B.onnx|DIR", type=PATH)
@click.option(
    "--data", type=PATH, metavar="FILE.npz|DIR",
    help="Arrays named after the inputs, of which labels 'y' add the accuracy; or a folder of JPEG and PNG files, with "
    "--mean and --std.",
)  # fmt: skip
@click.option(
    "--text", type=PATH, metavar="FILE",
    help="Compare language models on this text, and measure their perplexities: the front of it, in windows.",
)  # fmt: skip
@click.option(
    "--tokenizer", type=PATH, metavar="FILE.json", help="Their tokenizer.  [default: tokenizer.json beside A.onnx]"
)
@click.option("--window", type=int, default=1024, show_default=True, metavar="N", help="Tokens of a window of --text.")
@click.option("--windows", type=int, default=24, show_default=True, metavar="N", help="Windows of --text at most.")
@pixels
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the generated inputs (without --data).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@threads()
@max_memory()
@common
@click.pass_context
def compare(
    context: click.Context,
    /,
    a: Path,
    b: Path,
    data: Path | None,
    seed: int,
    threads: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure how close B.onnx is to A.onnx on the same inputs, and what both of them cost.

    A folder of a language model stands for the model in it.
    """
    from onnxfold import api

    set_flags(context, options)
    with ProgressBar() as tell:
        found = api.compare(a, b, data, seed=seed, threads=threads, progress=tell, **options)
    if as_json:
        say_json(found.to_dict())
        return
    say(str(found.verdict))
    if found.size_a is not None and found.size_b is not None:
        cells = size_cells(found.size_a, found.size_b, found.latency)
        say_table(Table("costs", ("", "A", "B", "removed"), cells, left=("",)))
        if found.latency is not None:
            say(latency_line(found.latency))
    if found.perplexity is not None:
        say(str(found.perplexity))
    say(f"{found.samples} samples of {found.inputs}")
    for output in found.outputs:
        say(f"  {output}")
    for note in found.notes:
        say(f"  note: {note}")
    if found.accuracy_a is not None and found.accuracy_b is not None:
        say(f"  accuracy {found.accuracy_a:.2%} -> {found.accuracy_b:.2%}")
