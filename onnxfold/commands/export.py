"""``onnxfold export``."""

import json
from pathlib import Path
from typing import Any

import click

from onnxfold.commands.shared import PATH, SHAPE, common, set_flags


@click.command()
@click.argument("model", metavar="IN.onnx", type=PATH)
@click.argument("output", metavar="OUT", type=PATH)
@click.option(
    "--backend", type=click.Choice(["direct", "onnx2tf", "auto"]), default="direct", show_default=True,
    help="Own writer, onnx2tf, or the second where the first refuses.",
)  # fmt: skip
@click.option(
    "--format", "output_format", type=click.Choice(["tflite", "c-array"]), default="tflite", show_default=True,
    help="A .tflite file, or a C header that holds it.",
)  # fmt: skip
@click.option(
    "--dtype", type=click.Choice(["float32", "float16", "int8"]), default="float32", show_default=True,
    help="Type of the weights; int8 quantises activations, too.",
)  # fmt: skip
@click.option("--keep-nchw-inputs", is_flag=True, help="Keep ONNX's order of axes of the inputs.")
@click.option("--input-shapes", type=SHAPE, multiple=True, help="Sizes to fix free input dimensions to.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the inputs of the check.")
@click.option("--no-verify", is_flag=True, help="Do not run the file beside onnxruntime before it is moved into place.")
@click.option("--report", type=PATH, help="Write a JSON report.")
@common
@click.pass_context
def export(
    context: click.Context, /, model: Path, output: Path, report: Path | None, no_verify: bool, **options: Any
) -> None:
    """Export IN.onnx to a TFLite file, or to a C array that holds one."""
    from onnxfold.errors import ConfigError
    from onnxfold.export import export_model
    from onnxfold.graph.save import check_writable, replacing

    set_flags(context, options)
    for path in filter(None, (output, report)):
        check_writable(path)
        if path.exists() and model.exists() and path.samefile(model):
            raise ConfigError(f"'{path}' is the input model: give another path, the input is never overwritten")
    options["input_shapes"] = dict(options["input_shapes"])
    done = export_model(model, output, verify=not no_verify, **options)
    if report is not None:
        with replacing(report) as file:
            file.write((json.dumps(done.to_dict(), indent=2) + "\n").encode())
    _print(done)


def _print(done: Any) -> None:
    if done.operators:
        click.echo("operators: " + ", ".join(f"{count} {name}" for name, count in done.operators.items()))
    for kind, ports in (("input", done.inputs), ("output", done.outputs)):
        for name, layout in ports.items():
            click.echo(f"{kind} '{name}': {layout}")
    if done.parity:
        found = done.parity
        click.echo(
            f"against onnxruntime on {found['samples']} synthetic samples in {found['interpreter']}: "
            f"max abs error {found['max_abs_error']:.3g}, max relative error {found['max_rel_error']:.3g}"
        )
    else:
        click.echo("not checked against the ONNX model (--no-verify)")
    for note in done.notes:
        click.echo(f"note: {note}")
    click.echo(
        f"wrote {done.path} ({done.size_bytes:,} bytes of TFLite, {done.dtype}, {done.backend}) in {done.seconds:.1f} s"
    )
