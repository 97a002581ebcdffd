"""The command ``onnxfold fold``."""

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import click
import cloup

from onnxfold.commands.options import FIRST, files_named, options_for, values_of
from onnxfold.commands.shared import (
    HTML,
    JSON,
    PATH,
    change,
    debug_flag,
    json_on_stdout,
    json_report,
    latency_line,
    print_refusals,
    quiet,
    report_file,
    set_flags,
    size_cells,
    verbose_flag,
    wrote,
)
from onnxfold.config import INT8
from onnxfold.config.option import INPUTS, MACHINE, OUTPUT
from onnxfold.errors import BudgetError
from onnxfold.files import STDOUT, check_outputs, option_outputs, write_together
from onnxfold.progress import ProgressBar, fold_stages, silent
from onnxfold.terminal import Table, say, say_table

_MORE = {
    INPUTS: [
        cloup.option("--save-inputs", type=PATH, metavar="FILE.png", help="Write the images that were used.")
    ],
    OUTPUT: [
        cloup.option(
            "--merge-map", "map_file", type=PATH, metavar="FILE.npz",
            help="Write the matrices that channels were merged by; a JSON report holds which became one.",
        ),
        cloup.option("--no-verify", is_flag=True, help="Write the result without running it in onnxruntime."),
        cloup.option("--force", is_flag=True, help="Write the result even if it is destroyed."),
        json_report, quiet, verbose_flag, debug_flag,
    ],
    MACHINE: [
        cloup.option("--no-cache", is_flag=True, help="Neither keep generated inputs nor take kept ones.")
    ],
}  # fmt: skip


@cloup.command()
@click.argument("model", metavar="IN.onnx|DIR", type=PATH)
@click.argument("output", metavar="OUT.onnx|DIR", type=PATH)
@options_for("fold", {FIRST: [report_file], **_MORE})
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
    from onnxfold.graph.files.model_files import claims_on
    from onnxfold.graph.files.save import outputs_of
    from onnxfold.inputs.images.png_grid import PNG

    set_flags(context, options)
    folder = folder_of(model)
    check_outputs(
        [
            *(
                outputs_of(output, "OUT.onnx", external_data=options["save_as_external_data"])
                if folder is None else [folder.output(output, "OUT")]
            ),
            *option_outputs(report, "--report", (*JSON, *HTML), may_be_stdout=True),
            *option_outputs(save_inputs, "--save-inputs", PNG),
            *option_outputs(map_file, "--merge-map", (".npz",)),
        ],
        claims_on([model if folder is None else folder.model], {
            "the input folder": None if folder is None else folder.path,
            **files_named(options),
        }),
        [] if folder is None else [folder.path],
    )  # fmt: skip
    options = values_of(options) | {"merge_map": map_file is not None}
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
    """Write the files of a fold, all of them or none, and print its report."""
    if result.report.warning:
        say(f"warning: {result.report.warning}", error=True)
    verdict = result.report.verdict
    if verdict is not None and verdict.is_destroyed and not force:
        more = "" if result.report.inputs is None or result.report.inputs.are_data else ", give --calibration"
        raise BudgetError(f"{verdict}; nothing was written: ask for less{more}, or write it all the same with --force")
    with write_together({path: content.encode() for path, content in report_files(result.report, report).items()}):
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
    """Print the costs, the fidelity and the notes of a fold."""
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
