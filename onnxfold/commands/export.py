"""The command ``onnxfold export``."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from onnxfold.commands import shared
from onnxfold.errors import ConfigError
from onnxfold.files import STDOUT, Output, check_outputs, option_outputs, write_together
from onnxfold.terminal import say

PROJECTS = ("arduino", "esp-idf", "qemu")
_ABOUT_SAMPLES = ("calibration", "data", "mean", "std", "channels", "force")


@click.command()
@click.argument("model", metavar="IN.onnx", type=shared.PATH)
@click.argument("output", metavar="OUT", type=shared.PATH)
@click.option(
    "--backend", type=click.Choice(["direct", "onnx2tf", "auto"]), default="direct",
    help="Direct writer, onnx2tf, or onnx2tf where the direct writer refuses.",
)  # fmt: skip
@click.option(
    "--format", "output_format", type=click.Choice(["tflite", "c-array", *PROJECTS]), default="tflite",
    help="A .tflite file, a C header that holds it, or a folder: an Arduino sketch (Nano 33 BLE), an ESP-IDF project "
    "(ESP-EYE), firmware for QEMU's Cortex-M4F.",
)  # fmt: skip
@click.option(
    "--runtime", type=click.Choice(["tflm", "generated"]),
    help="Runtime of the model in a project: TensorFlow Lite Micro (arduino, esp-idf), or C code by emx-onnx-cgen "
    "(qemu). By default tflm where the project supports both.",
)  # fmt: skip
@click.option(
    "--dtype", type=click.Choice(["float32", "float16", "int8"]), default="float32",
    help="Type of the weights; int8 also quantises activations.",
)  # fmt: skip
@click.option("--keep-nchw-inputs", is_flag=True, help="Keep ONNX's axis order of the inputs.")
@click.option("--input-shapes", type=shared.SHAPE, multiple=True, help="Sizes of free input dimensions.")
@click.option(
    "--calibration", type=shared.PATH, metavar="FILE.npz|DIR",
    help="Take the ranges of int8 from these samples: arrays named after the inputs, or a folder of JPEG and PNG "
    "files, with --mean and --std.  [default: generated inputs]",
)  # fmt: skip
@click.option(
    "--data", type=shared.PATH, metavar="FILE.npz|DIR",
    help="Check the file on these samples.  [default: those of --calibration, or generated inputs]",
)  # fmt: skip
@shared.option("mean", "std", "channels")
@click.option("--seed", type=int, default=0, help="Seed of the inputs that check the file.")
@click.option("--force", is_flag=True, help="Write an int8 file even if its outputs have a noise above -20 dB.")
@click.option("--no-verify", is_flag=True, help="Do not compare the file's outputs with onnxruntime's.")
@click.option("--report", type=shared.PATH, metavar="FILE", help="Write a JSON report; - prints it.")
@shared.option("max_memory")
@shared.common
@click.pass_context
def export(
    context: click.Context, /, model: Path, output: Path, report: Path | None, no_verify: bool, runtime: str | None,
    **options: Any,
) -> None:  # fmt: skip
    """Export IN.onnx to a TFLite file, a C array that holds one, or a firmware project."""
    from onnxfold.export import export_model
    from onnxfold.export.firmware import write_project
    from onnxfold.graph.files.model_files import claims_on

    is_project = options["output_format"] in PROJECTS
    check_outputs(
        [
            Output(output, "OUT", is_folder=is_project),
            *option_outputs(report, "--report", shared.JSON, may_be_stdout=True),
        ],
        claims_on([model], {"--calibration": options["calibration"], "--data": options["data"]}),
    )
    options |= {"input_shapes": dict(options["input_shapes"]), "verify": not no_verify, "within": _report_to(report)}
    if is_project:
        _check_project(context, runtime, options)
        samples: Any = {name: options[name] for name in _ABOUT_SAMPLES}
        about = {name: options[name] for name in ("dtype", "input_shapes", "verify", "seed", "within")}
        kind = options["output_format"]
        done: Any = write_project(model, output, kind, runtime=runtime or "", samples=samples, **about)
    elif runtime is None:
        done = export_model(model, output, **options)
    else:
        raise ConfigError(f"--runtime is for projects: give it with --format {', '.join(PROJECTS)}")
    with shared.json_on_stdout(report == STDOUT, lambda: asdict(done)):
        (_print_project if is_project else _print)(done)


def _report_to(path: Path | None) -> Callable[[Any], AbstractContextManager[Any]]:
    """Return a writer of a report, together with the file that it is about: on a full disk neither appears."""
    return lambda done: write_together(shared.report_files(path, lambda: json.dumps(asdict(done), indent=2) + "\n"))


def _check_project(context: click.Context, runtime: str | None, options: dict[str, Any]) -> None:
    for name in ("backend", "keep_nchw_inputs"):
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            raise ConfigError(f"--{name.replace('_', '-')} is not for projects")
    if options["dtype"] == "float16":
        raise ConfigError("--dtype float16 is not for projects: their runtimes compute in float32 or int8")
    if runtime == "generated" and any(options[name] for name in _ABOUT_SAMPLES if name != "channels"):
        raise ConfigError("samples and --force are for TensorFlow Lite Micro: generated code computes in float32")


def _print_project(done: Any) -> None:
    say(f"runs in: {done.runtime}")
    say(f"input: {done.input_bytes:,} bytes, output: {done.output_bytes:,} bytes")
    say(f"arena: {done.arena_bytes:,} bytes, model: {done.model_bytes:,} bytes ({done.dtype})")
    say(*(f"note: {note}" for note in done.notes))
    if done.misfit:
        say(f"warning: {done.misfit}", error=True)
    say(f"wrote {done.path} ({done.kind}, {len(done.files)} files): see its README.md for the next steps")


def _print(done: Any) -> None:
    if done.operators:
        say("operators: " + ", ".join(f"{count} {name}" for name, count in done.operators.items()))
    for kind, ports in (("input", done.inputs), ("output", done.outputs)):
        say(*(f"{kind} '{name}': {layout}" for name, layout in ports.items()))
    parity = done.parity
    if parity and parity["output"]:
        snr = "no difference" if parity["snr_db"] is None else f"SNR {parity['snr_db']:.1f} dB"
        say(
            f"against onnxruntime on {parity['samples']} {parity['inputs']} samples in {parity['interpreter']}: "
            f"max abs error {parity['max_abs_error']:.3g}, max relative error {parity['max_rel_error']:.3g}, {snr}"
        )
    elif not parity:
        say("not checked against the ONNX model (--no-verify)")
    say(*(f"note: {note}" for note in done.notes))
    say(
        f"{shared.wrote(Path(done.path))} ({done.size_bytes:,} bytes of TFLite, {done.dtype}, {done.backend}) "
        f"in {done.seconds:.1f} s"
    )
