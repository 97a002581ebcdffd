"""``onnxfold export``."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from onnxfold.commands.shared import PATH, SHAPE, common, max_memory, set_flags
from onnxfold.terminal import say

PROJECTS = ("arduino", "esp-idf", "qemu")


@click.command()
@click.argument("model", metavar="IN.onnx", type=PATH)
@click.argument("output", metavar="OUT", type=PATH)
@click.option(
    "--backend", type=click.Choice(["direct", "onnx2tf", "auto"]), default="direct", show_default=True,
    help="Own writer, onnx2tf, or the second where the first refuses.",
)  # fmt: skip
@click.option(
    "--format", "output_format", type=click.Choice(["tflite", "c-array", *PROJECTS]), default="tflite",
    show_default=True,
    help="A .tflite file, a C header that holds it, or a folder: an Arduino sketch (Nano 33 BLE), an ESP-IDF project "
    "(ESP-EYE), firmware for QEMU's Cortex-M4F.",
)  # fmt: skip
@click.option(
    "--runtime", type=click.Choice(["tflm", "generated"]),
    help="What runs the model in a project: TensorFlow Lite Micro (arduino, esp-idf), or C code by emx-onnx-cgen "
    "(qemu). The first where both can.",
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
@max_memory()
@common
@click.pass_context
def export(
    context: click.Context,
    /,
    model: Path,
    output: Path,
    report: Path | None,
    no_verify: bool,
    runtime: str | None,
    **options: Any,
) -> None:
    """Export IN.onnx to a TFLite file, a C array that holds one, or a firmware project."""
    from onnxfold.errors import ConfigError
    from onnxfold.export import export_model
    from onnxfold.graph.save import check_writable, replacing

    set_flags(context, options)
    if options["output_format"] in PROJECTS:
        _project(context, model, output, report, runtime or "", verify=not no_verify, options=options)
        return
    if runtime is not None:
        raise ConfigError(f"--runtime is for projects: give it with --format {', '.join(PROJECTS)}")
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


def _project(
    context: click.Context,
    model: Path,
    output: Path,
    report: Path | None,
    runtime: str,
    *,
    verify: bool,
    options: dict[str, Any],
) -> None:
    from onnxfold.errors import ConfigError
    from onnxfold.export.firmware import write_project
    from onnxfold.graph.save import check_writable, replacing

    for name in ("backend", "dtype", "keep_nchw_inputs"):
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            raise ConfigError(f"--{name.replace('_', '-')} is not for projects, which hold the model in float32")
    if report is not None:
        check_writable(report)
    done = write_project(
        model, output, options["output_format"], runtime=runtime, input_shapes=dict(options["input_shapes"]),
        verify=verify, seed=options["seed"],
    )  # fmt: skip
    if report is not None:
        with replacing(report) as file:
            file.write((json.dumps(asdict(done), indent=2) + "\n").encode())
    say(f"runs in: {done.runtime}")
    say(f"input: {done.input_bytes:,} bytes, output: {done.output_bytes:,} bytes")
    say(f"activations: {done.arena_bytes:,} bytes")
    say(f"wrote {done.path} ({done.kind}, {len(done.files)} files): what to do with it is in its README.md")


def _print(done: Any) -> None:
    if done.operators:
        say("operators: " + ", ".join(f"{count} {name}" for name, count in done.operators.items()))
    for kind, ports in (("input", done.inputs), ("output", done.outputs)):
        for name, layout in ports.items():
            say(f"{kind} '{name}': {layout}")
    if done.parity:
        found = done.parity
        say(
            f"against onnxruntime on {found['samples']} synthetic samples in {found['interpreter']}: "
            f"max abs error {found['max_abs_error']:.3g}, max relative error {found['max_rel_error']:.3g}"
        )
    else:
        say("not checked against the ONNX model (--no-verify)")
    for note in done.notes:
        say(f"note: {note}")
    say(
        f"wrote {done.path} ({done.size_bytes:,} bytes of TFLite, {done.dtype}, {done.backend}) in {done.seconds:.1f} s"
    )
