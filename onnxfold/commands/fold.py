"""The command ``onnxfold fold``."""

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import click

from onnxfold.commands.shared import (
    ALLOCATION,
    CLUSTER,
    DEVICE,
    DTYPE,
    HTML,
    INPUT_KIND,
    JSON,
    METHOD,
    OBJECTIVE,
    PATH,
    RATIO,
    REPAIR,
    SHAPE,
    STEP,
    STEPS,
    attention,
    change,
    common,
    file_named,
    json_on_stdout,
    latency_line,
    limits,
    max_memory,
    pixels,
    print_refusals,
    quiet,
    reported,
    set_flags,
    size_cells,
    threads,
    wrote,
)
from onnxfold.config import DEFAULT_CACHE, INT8
from onnxfold.errors import BudgetError
from onnxfold.files import STDOUT, check_outputs, given, writing
from onnxfold.progress import ProgressBar, fold_stages, silent
from onnxfold.terminal import Table, say, say_table


@click.command()
@click.argument("model", metavar="IN.onnx|DIR", type=PATH)
@click.argument("output", metavar="OUT.onnx|DIR", type=PATH)
@click.option("--sparsity", type=float, help="Fraction of the weights to remove.  [default: 0.5 without another goal]")
@click.option("--channel-ratio", type=float, help="Fraction of the channels to remove from every group.")
@click.option("--ratio", "ratios", type=RATIO, multiple=True, help="Channel ratio of matching groups; 0 keeps them.")
@limits
@click.option(
    "--max-latency", metavar="TIME",
    help="Limit of a run in onnxruntime on this machine, e.g. 3.5ms, or 0.6x of the input's.",
)  # fmt: skip
@click.option(
    "--tolerance", type=float, default=5.0, show_default=True, metavar="PERCENT",
    help="Percent that a measured latency may be above --max-latency.",
)  # fmt: skip
@click.option(
    "--latency-table", type=PATH, metavar="FILE.json", help="Take latencies from this report, and measure nothing."
)
@click.option(
    "--device", type=DEVICE, metavar="NAME",
    help="Fold until the model fits a device: name or TOML file of a profile.",
)  # fmt: skip
@click.option("--min-fidelity", type=float, help="Lowest agreement with the original to keep; sets the sparsity.")
@click.option(
    "--data", type=PATH, metavar="FILE.npz", help="Labelled samples for --max-drop: inputs by name, and labels 'y'."
)
@click.option(
    "--max-drop", type=float, metavar="POINTS",
    help="Highest loss of top-1 accuracy on held-out samples of --data, in points; sets the sparsity.",
)  # fmt: skip
@click.option(
    "--method",
    type=METHOD,
    default="fold-ls",
    show_default=True,
    metavar="NAME",
    help="Name of a clustering, repair and inputs: fold-ls, fold-ar, fold-naive, fold-r, fold-dir, prune-l1, prune-l2, "
    "wanda-sp, flap, ifm, slicegpt, shortgpt.",
)
@click.option(
    "--cluster",
    type=CLUSTER,
    metavar="NAME",
    help="Replace the method's clustering: elimination, kmeans, kmeans-heads, ward, complete, average, single, "
    "spectral, greedy, ifm, top-l1, top-l2, rotation, streams, wanda, flap.",
)
@click.option(
    "--repair", type=REPAIR, metavar="NAME",
    help="Replace the method's repair: none, approximate, independent, recalibrate, least-squares, bias.",
)  # fmt: skip
@click.option(
    "--allocation", type=ALLOCATION, default="global", show_default=True,
    help="Allocation of widths: global or uniform.",
)  # fmt: skip
@click.option(
    "--inputs",
    type=INPUT_KIND,
    default="auto",
    show_default=True,
    metavar="KIND",
    help="Inputs to run the network on: auto, deep-inversion, dead-leaves, noise, or an .npz file.",
)
@click.option(
    "--samples", type=int,
    help="Number of generated samples, or of images of a folder.  [default: by their cost, at most 512]",
)  # fmt: skip
@click.option(
    "--input-seconds", type=float, metavar="N",
    help="Time limit of generating samples, in seconds.  [default: a counted cost, and no clock]",
)  # fmt: skip
@click.option(
    "--input-steps", type=STEPS, default=(), metavar="N[,N...]", help="Repeat an inversion with these steps per batch."
)
@click.option(
    "--calibration", type=PATH, metavar="FILE.npz|FILE.txt|DIR",
    help="Run the network on these unlabeled samples instead; a folder: its JPEG and PNG files, with --mean and --std; "
    "a text: its tokens; for fold-ls, what the model writes itself stands between them.",
)  # fmt: skip
@click.option(
    "--tokenizer", type=PATH, metavar="FILE.json",
    help="Tokenizer of a language model.  [default: tokenizer.json beside it]",
)  # fmt: skip
@pixels
@click.option(
    "--save-inputs", type=PATH, metavar="FILE.png", help="Write the images that the network was run on as a PNG."
)
@click.option(
    "--round-to",
    type=STEP,
    default="auto",
    show_default=True,
    help="Make widths multiples of this number; auto: of what a runtime computes fast, if no memory is limited.",
)
@click.option(
    "--objective",
    type=OBJECTIVE,
    default="balanced",
    show_default=True,
    metavar="NAME",
    help="What accuracy is traded against by global allocation: balanced, weights or macs.",
)
@click.option("--keep", multiple=True, metavar="GLOB", help="Keep all channels of groups with a matching node.")
@click.option("--input-shapes", type=SHAPE, multiple=True, help="Sizes of free input dimensions.")
@attention
@click.option(
    "--drop-blocks", type=STEP, metavar="N|auto",
    help="Drop N residual blocks whole, those that change their stream least; auto: what costs less than channels.",
)  # fmt: skip
@click.option(
    "--tune-norms", is_flag=True,
    help="Train scales and biases of norms after the fold to answer as the original does; needs torch.",
)  # fmt: skip
@click.option(
    "--lossless", is_flag=True,
    help="Remove only what changes no output: weights stored twice, dead channels, exact duplicates.",
)  # fmt: skip
@click.option(
    "--dtype", type=DTYPE, default="keep", show_default=True, metavar="TYPE",
    help="Types of the result: keep, the model's own, or int8; --sparsity 0 then only quantises.",
)  # fmt: skip
@reported
@click.option(
    "--merge-map", "map_file", type=PATH, metavar="FILE.npz",
    help="Write the matrices that channels were merged by; a JSON report holds which became one.",
)  # fmt: skip
@click.option("--save-as-external-data", is_flag=True, help="Write the weights to OUT.onnx.data.")
@max_memory(expose_value=True)
@click.option(
    "--cache",
    metavar="DIR",
    default=DEFAULT_CACHE,
    show_default="in the user's cache folder",
    help="Keep generated inputs here for further folds of the model; none keeps nothing.",
)
@click.option("--no-cache", is_flag=True, help="Keep nothing for further folds, and take nothing from earlier ones.")
@threads()
@click.option("--no-verify", is_flag=True, help="Write the result without running it in onnxruntime.")
@click.option("--force", is_flag=True, help="Write the result even if it is destroyed.")
@quiet
@common
@click.pass_context
def fold(
    context: click.Context,
    /,
    model: Path,
    output: Path,
    report: Path | None,
    save_inputs: Path | None,
    map_file: Path | None,
    no_verify: bool,
    force: bool,
    no_cache: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Fold IN.onnx into OUT.onnx: merge similar channels, and repair what the merge changed.

    A folder, as onnxruntime-genai's builder or optimum writes it, is folded into a new folder, with copies of its
    tokenizer, its configurations and whatever else it holds.
    """
    from onnxfold import api
    from onnxfold.folders import folder_of
    from onnxfold.folding.methods import METHODS
    from onnxfold.graph.model_files import claims_on
    from onnxfold.graph.save import outputs_of
    from onnxfold.inputs.png_grid import PNG

    set_flags(context, options)
    folder = folder_of(model)
    check_outputs(
        [
            *(
                outputs_of(output, "OUT.onnx", external_data=options["save_as_external_data"])
                if folder is None else [folder.output(output, "OUT")]
            ),
            *given(report, "--report", (*JSON, *HTML), may_be_stdout=True),
            *given(save_inputs, "--save-inputs", PNG),
            *given(map_file, "--merge-map", (".npz",)),
        ],
        claims_on([model if folder is None else folder.model], {
            "the input folder": None if folder is None else folder.path,
            "--calibration": options["calibration"],
            "--tokenizer": options["tokenizer"],
            "--data": options["data"],
            "--inputs": file_named(options["inputs"], ".npz"),
            "--device": file_named(options["device"], ".toml"),
            "--latency-table": options["latency_table"],
        }),
        [] if folder is None else [folder.path],
    )  # fmt: skip
    options["merge_map"] = map_file is not None
    options["ratios"] = dict(options["ratios"])
    options["input_shapes"] = dict(options["input_shapes"])
    if no_cache:
        options["cache"] = None
    measures = options["max_latency"] is not None or options["objective"] == "latency"
    row = METHODS.get(options["method"])
    drops = options["drop_blocks"] is not None or (row is not None and row.drops_blocks)
    tunes = options["tune_norms"]
    stages = fold_stages(measures=measures, quantizes=options["dtype"] == INT8, drops=drops, tunes=tunes)
    with nullcontext(silent) if quiet else ProgressBar(stages) as tell:
        result = api.fold(model, options.pop("sparsity"), verify=not no_verify, progress=tell, **options)
    writers = {save_inputs: result.save_inputs, map_file: result.save_merge_map}
    also = [partial(write, path) for path, write in writers.items() if path is not None]
    verbose = context.obj["verbose"]
    hand_over(result, output, report, as_json=as_json, quiet=quiet, verbose=verbose, also=also, force=force)


def hand_over(
    result: Any, output: Path, report: Path | None, *, as_json: bool, quiet: bool, verbose: bool,
    force: bool, also: Sequence[Callable[[], object]] = (),
) -> None:  # fmt: skip
    """Write what a fold gave, all of it or nothing, and print what it did.

    Parameters
    ----------
    result : FoldResult
        The result.
    output : Path
        Where the model goes.
    report : Path, optional
        Where the report goes.
    as_json, quiet, verbose : bool
        What is printed.
    also : sequence of callable
        What writes further files.
    force : bool
        Whether the result is written even if it is destroyed.

    Raises
    ------
    BudgetError
        If it is destroyed and not forced; nothing is written then.
    """
    if result.report.warning:
        say(f"warning: {result.report.warning}", error=True)
    verdict = result.report.verdict
    if verdict is not None and verdict.is_destroyed and not force:
        more = "" if result.report.inputs is None or result.report.inputs.kind == "data" else ", give --calibration"
        raise BudgetError(f"{verdict}; nothing was written: ask for less{more}, or write it all the same with --force")
    with writing({path: content.encode() for path, content in report_files(result.report, report).items()}):
        for write in also:
            write()
        result.save(output)
    with json_on_stdout(as_json or report == STDOUT, lambda: json.loads(result.report.to_json()), quiet=quiet):
        print_fold(result.report, output, verbose=verbose)


def report_files(report: Any, path: Path | None) -> dict[Path, str]:
    """Return the content of a report's file, by its path; nothing where it goes to no file."""
    from onnxfold.html_report import render_html

    if path is None or path == STDOUT:
        return {}
    return {path: render_html(report) if path.suffix.lower() in HTML else report.to_json()}


def print_fold(report: Any, output: Path, *, verbose: bool) -> None:
    """Print what a fold did."""
    if report.verdict is not None:
        say(str(report.verdict))
    before, after = report.before, report.after
    channels = sum(g.width for g in report.groups), sum(g.folded_width for g in report.groups)
    cells = [*size_cells(before, after, report.latency), ("channels in groups", *change(*channels))]
    title = f"{report.method}, {report.allocation} allocation, {report.requested}"
    say_table(Table(title, ("", "before", "after", "removed"), cells, left=("",)))
    folded = sum(g.folded_width < g.width for g in report.groups)
    say(f"groups folded: {folded} of {len(report.groups)}; weight axes left alone: {len(report.refusals)}")
    if verbose:
        for group in report.groups:
            how = f" (cluster {group.cluster}, repair {group.repair})" if group.cluster else ""
            say(f"  {group.name}: {group.width} -> {group.folded_width}{how}")
    print_refusals(report.refusals, verbose=verbose)
    if report.merged is not None:
        for network in report.merged.networks:
            say(f"share of {network}")
    if report.fidelity is not None:
        for fidelity in report.fidelity.outputs:
            what = f"{report.fidelity.samples} samples of {report.fidelity.inputs}"
            say(f"fidelity on {what}: {fidelity}")
    if report.fidelity_on_samples is not None:
        for fidelity in report.fidelity_on_samples.outputs:
            what = f"{report.fidelity_on_samples.samples} of the given samples that were held out"
            say(f"fidelity on {what}: {fidelity}")
    if report.estimate_line:
        say(report.estimate_line)
    if report.latency is not None:
        say(latency_line(report.latency, "the first" if report.merged is None else "all networks beside each other"))
    if report.merged is not None and report.merged.latency is not None:
        say(report.merged.beside_one)
    if report.tuning is not None:
        say(str(report.tuning))
    if report.quantization is not None:
        say(str(report.quantization))
    if report.inputs is not None:
        say(f"run on {report.inputs.samples} samples of {report.inputs.kind}: {report.inputs.reason}")
    for note in report.notes:
        say(f"note: {note}")
    say(f"{wrote(output)} in {report.seconds:.1f} s")
