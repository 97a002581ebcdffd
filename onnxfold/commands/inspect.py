"""The command ``onnxfold inspect``."""

from pathlib import Path
from typing import Any

import click

from onnxfold.commands.shared import PATH, SHAPE, common, max_memory, print_refusals, set_flags
from onnxfold.terminal import Table, say, say_json, say_table


@click.command()
@click.argument("model", metavar="IN.onnx", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--input-shapes", type=SHAPE, multiple=True, help="Sizes of free input dimensions.")
@max_memory()
@common
@click.pass_context
def inspect(context: click.Context, /, model: Path, as_json: bool, **options: Any) -> None:
    """Show fold groups, widths, and the reasons why other weights stay."""
    from onnxfold import api

    set_flags(context, options)
    found = api.inspect_model(model, input_shapes=dict(options["input_shapes"]))
    if as_json:
        say_json(found.to_dict())
        return
    _print_inspection(found, verbose=context.obj["verbose"])


def _print_inspection(found: Any, *, verbose: bool) -> None:
    rows = [
        (
            group["name"], str(group["width"]), f"{group['weights']:,}", f"{group['share']:.1%}",
            _names(group["producers"], verbose=verbose), _names(group["consumers"], verbose=verbose),
        )
        for group in found.to_dict()["groups"]
    ]  # fmt: skip
    columns = ("group", "width", "weights", "share", "producers", "consumers")
    say_table(Table("fold groups", columns, rows, left=("group", "producers", "consumers")))
    share = found.share
    say(
        f"{share.either:.1%} of the {share.weights:,} conv/linear weights lie in fold groups "
        f"(output axes {share.outputs:.1%}, input axes {share.inputs:.1%})"
    )
    print_refusals(found.refusals, verbose=verbose)
    for note in found.notes:
        say(f"note: {note}")


def _names(names: list[str], *, verbose: bool) -> list[str]:
    return names if verbose or len(names) <= 2 else [names[0], f"... {len(names) - 1} more"]
