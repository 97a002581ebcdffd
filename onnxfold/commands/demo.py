"""The command ``onnxfold demo``."""

from pathlib import Path

import click

from onnxfold.commands.shared import PATH, common, wrote
from onnxfold.errors import ConfigError
from onnxfold.terminal import say


@click.command()
@click.option("--out", type=PATH, default=Path("demo_output"), help="Folder for the folded models.")
@click.option("--model", type=click.Choice(["lenet5_2x", "lenet5"]), default="lenet5_2x", help="Bundled model.")
@click.option(
    "--copy", "copies", type=PATH, metavar="DIR",
    help="Fold nothing: write the model, and test images with labels as --data takes them, to this folder.",
)  # fmt: skip
@common
@click.pass_context
def demo(context: click.Context, /, out: Path, model: str, copies: Path | None) -> None:
    """Fold a bundled trained model to several sizes and show its accuracy."""
    from onnxfold.commands.run_demo import copy_demo, run_demo

    if copies is None:
        run_demo(out, model)
        return
    if context.get_parameter_source("out") is not click.core.ParameterSource.DEFAULT:
        raise ConfigError("--out is for folded models, and --copy folds none: give one of them")
    say(*map(wrote, copy_demo(copies, model)))
