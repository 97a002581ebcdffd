"""The command ``onnxfold merge``."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from onnxfold.commands.fold import hand_over
from onnxfold.commands.shared import (
    DEVICE,
    DTYPE,
    HTML,
    INPUT_KIND,
    JSON,
    METHOD,
    OBJECTIVE,
    PATH,
    REPAIR,
    SHAPE,
    STEP,
    STEPS,
    Names,
    common,
    file_named,
    limits,
    max_memory,
    pixels,
    quiet,
    reported,
    set_flags,
    threads,
)
from onnxfold.config import DEFAULT_CACHE, INT8
from onnxfold.files import check_outputs, given
from onnxfold.progress import ProgressBar, fold_stages, silent


@click.command()
@click.argument("models", metavar="A.onnx B.onnx [C.onnx ...]", type=PATH, nargs=-1, required=True)
@click.argument("output", metavar="OUT.onnx", type=PATH)
@click.option(
    "--width", type=float,
    help="Channels of every group, over those of one network; with as many as there are networks, the result is "
    "exact.  [default: 1 without another goal]",
)  # fmt: skip
@click.option(
    "--heads", default="auto", show_default=True, metavar="HOW",
    help="What becomes of the outputs: join (classes of all networks, in their order), average, first (A's), or auto: "
    "average where shapes agree, else join.",
)  # fmt: skip
@click.option("--labels", metavar="NAME[,NAME...]", help="Names of the classes of OUT, for its metadata.")
@click.option("--until", metavar="NODE", help="Merge no channels behind this node of A; each network keeps its own.")
@click.option("--sparsity", type=float, help="Fraction of the weights of all networks together to remove.")
@limits
@click.option(
    "--device", type=DEVICE, metavar="NAME",
    help="Merge until the model fits a device: name or TOML file of a profile.",
)  # fmt: skip
@click.option("--method", type=METHOD, default="fold-ls", show_default=True, metavar="NAME", help="As of fold.")
@click.option(
    "--cluster", metavar="NAME",
    type=Names("onnxfold.cluster.partitioners:PARTITIONERS", "matching", "zip", "by-place"),
    help="Replace the method's clustering: one of fold's, or matching, zip, by-place, which know the networks.",
)  # fmt: skip
@click.option(
    "--repair", type=REPAIR, metavar="NAME",
    help="Replace the method's repair: none, approximate, independent, recalibrate, least-squares.",
)  # fmt: skip
@click.option(
    "--inputs", type=INPUT_KIND, default="auto", show_default=True, metavar="KIND",
    help="Inputs to run the networks on, an equal part made by each: auto, deep-inversion, dead-leaves, noise, or an "
    ".npz file.",
)  # fmt: skip
@click.option("--samples", type=int, help="Number of samples.  [default: by their cost, at most 512 per network]")
@click.option("--input-seconds", type=float, metavar="N", help="Time limit of generating the samples of a network.")
@click.option("--input-steps", type=STEPS, default=(), metavar="N[,N...]", help="Repeat an inversion with these steps.")
@click.option(
    "--calibration", type=PATH, metavar="FILE.npz|DIR", help="Run the networks on these unlabeled samples instead."
)
@pixels
@click.option("--round-to", type=STEP, default="auto", show_default=True, help="As of fold; for --sparsity and limits.")
@click.option("--objective", type=OBJECTIVE, default="balanced", show_default=True, metavar="NAME", help="As of fold.")
@click.option("--keep", multiple=True, metavar="GLOB", help="Merge no channels of groups with a matching node.")
@click.option("--input-shapes", type=SHAPE, multiple=True, help="Sizes of free input dimensions.")
@click.option(
    "--dtype", type=DTYPE, default="keep", show_default=True, metavar="TYPE", help="Types of the result: keep, or int8."
)
@reported
@click.option("--save-as-external-data", is_flag=True, help="Write the weights to OUT.onnx.data.")
@max_memory(expose_value=True)
@click.option(
    "--cache", metavar="DIR", default=DEFAULT_CACHE, show_default="in the user's cache folder",
    help="Keep generated inputs here for further merges; none keeps nothing.",
)  # fmt: skip
@threads()
@click.option("--force", is_flag=True, help="As of fold.")
@click.option("--no-verify", is_flag=True, help="Write the result without running it in onnxruntime.")
@quiet
@common
@click.pass_context
def merge(
    context: click.Context,
    /,
    models: tuple[Path, ...],
    output: Path,
    labels: str | None,
    report: Path | None,
    no_verify: bool,
    as_json: bool,
    quiet: bool,
    force: bool,
    **options: Any,
) -> None:
    """Merge trained networks of one layout into OUT.onnx, at the width of one of them by default.

    Layers correspond by structure, not by name, and may have different widths. The networks are joined into one exact
    graph, which is folded.
    """
    from onnxfold import merging
    from onnxfold.graph.model_files import claims_on
    from onnxfold.graph.save import outputs_of

    set_flags(context, options)
    check_outputs(
        [
            *outputs_of(output, "OUT.onnx", external_data=options["save_as_external_data"]),
            *given(report, "--report", (*JSON, *HTML), may_be_stdout=True),
        ],
        claims_on(list(models), {
            "--calibration": options["calibration"],
            "--inputs": file_named(options["inputs"], ".npz"),
            "--device": file_named(options["device"], ".toml"),
        }),
        [],
    )  # fmt: skip
    options["input_shapes"] = dict(options["input_shapes"])
    names = () if labels is None else tuple(name.strip() for name in labels.split(","))
    with nullcontext(silent) if quiet else ProgressBar(fold_stages(quantizes=options["dtype"] == INT8)) as tell:
        result = merging.merge(models, labels=names, verify=not no_verify, progress=tell, **options)
    hand_over(result, output, report, as_json=as_json, quiet=quiet, verbose=context.obj["verbose"], force=force)
