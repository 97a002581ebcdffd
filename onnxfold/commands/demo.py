"""The command ``onnxfold demo``."""

from pathlib import Path
from typing import Any

import click

from onnxfold.commands.shared import PATH, common, set_flags


@click.command()
@click.option("--out", type=PATH, default=Path("demo_output"), show_default=True, help="Folder for the folded models.")
@click.option(
    "--model",
    type=click.Choice(["lenet5_2x", "lenet5"]),
    default="lenet5_2x",
    show_default=True,
    help="Bundled model to fold.",
)
@common
@click.pass_context
def demo(context: click.Context, /, out: Path, model: str, **options: Any) -> None:
    """Fold a bundled trained model to several sizes and show its accuracy."""
    from onnxfold.commands.run_demo import run_demo

    set_flags(context, options)
    run_demo(out, model)
