"""The command ``onnxfold fold``."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import click
import cloup

from onnxfold.commands import shared
from onnxfold.config import INT8, NO_REFINEMENT
from onnxfold.config.option import INPUTS, MACHINE, OUTPUT
from onnxfold.errors import BudgetError
from onnxfold.files import STDOUT, Output, check_outputs, option_outputs, write_together
from onnxfold.html_report.numbers import cost_cells
from onnxfold.progress import Progress, ProgressBar, fold_stages, silent
from onnxfold.terminal import Table, say, say_table

_MORE = {
    INPUTS: [
        cloup.option("--save-inputs", type=shared.PATH, metavar="FILE.png", help="Write the images that were used.")
    ],
    OUTPUT: shared.about_result,
    MACHINE: [
        cloup.option("--no-cache", is_flag=True, help="Neither keep generated inputs nor take kept ones.")
    ],
}  # fmt: skip


@cloup.command(cls=shared.FoldCommand)
@click.argument("model", metavar="IN.onnx|DIR", type=shared.PATH)
@click.argument("output", metavar="OUT.onnx|DIR", type=shared.PATH)
@shared.options_for("fold", {shared.FIRST: [shared.report_file], **_MORE})
@click.pass_context
def fold(context: click.Context, /, model: Path, output: Path, **options: Any) -> None:
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

    delivery = Delivery.of(context, output, options)
    folder = folder_of(model)
    pictures = options["save_inputs"]
    check_outputs(
        [
            *(
                outputs_of(output, "OUT.onnx", external_data=options["save_as_external_data"])
                if folder is None else [folder.output(output, "OUT")]
            ),
            *delivery.outputs,
            *option_outputs(pictures, "--save-inputs", PNG),
        ],
        claims_on([model if folder is None else folder.model], {
            "the input folder": None if folder is None else folder.path,
            **shared.files_named(options),
        }),
        [] if folder is None else [folder.path],
    )  # fmt: skip
    request = shared.values_of(options) | {"verify": not options["no_verify"]}
    if options["no_cache"]:
        request["cache"] = None
    row = METHODS.get(request["method"])
    stages = fold_stages(
        measures=request["max_latency"] is not None or request["objective"] == "latency",
        quantizes=request["dtype"] == INT8, refines=request["refine"] != NO_REFINEMENT,
        drops=request["drop_blocks"] is not None or (row is not None and row.drops_blocks),
    )  # fmt: skip
    with delivery.progress(stages) as tell:
        result = api.fold(model, progress=tell, **request)
    delivery.deliver(result, [] if pictures is None else [partial(result.save_inputs, pictures)])


@dataclass(frozen=True)
class Delivery:
    """Where the result of a fold and its report go, and what is printed."""

    output: Path
    report: Path | None
    as_json: bool
    quiet: bool
    force: bool  # whether a destroyed model is written, too
    verbose: bool

    @classmethod
    def of(cls, context: click.Context, output: Path, options: dict[str, Any]) -> Self:
        """Take what a command line says of it out of the options."""
        delivered = {name: options.pop(name) for name in ("report", "as_json", "quiet", "force")}
        return cls(output, **delivered, verbose=context.obj["verbose"])

    @property
    def outputs(self) -> list[Output]:
        """The file of the report, to be checked before any work."""
        return option_outputs(self.report, "--report", (*shared.JSON, *shared.HTML), may_be_stdout=True)

    def progress(self, stages: Sequence[Sequence[str]]) -> AbstractContextManager[Progress]:
        """Return the display of the fold's progress."""
        return nullcontext(silent) if self.quiet else ProgressBar(stages)

    def deliver(self, result: Any, also: Sequence[Callable[[], object]] = ()) -> None:
        """Write the files of a fold, all of them or none, and print its report."""
        from onnxfold.html_report import render_html

        report = result.report
        if report.warning:
            say(f"warning: {report.warning}", error=True)
        verdict = report.verdict
        if verdict.is_destroyed and not self.force:
            more = "" if report.inputs is None or report.inputs.are_data else ", give --calibration"
            hint = f"ask for less{more}, or write it all the same with --force"
            raise BudgetError(f"{verdict}; nothing was written: {hint}")
        is_page = self.report is not None and self.report.suffix.lower() in shared.HTML
        text = partial(render_html, report) if is_page else report.to_json
        with write_together(shared.report_files(self.report, text)):
            for write in also:
                write()
            result.save(self.output)
        wants_json = self.as_json or self.report == STDOUT
        with shared.json_on_stdout(wants_json, lambda: json.loads(report.to_json()), quiet=self.quiet):
            print_fold(report, self.output, verbose=self.verbose)


def print_fold(report: Any, output: Path, *, verbose: bool) -> None:
    """Print the costs, the fidelity and the notes of a fold."""
    say(str(report.verdict))
    title = f"{report.method}, {report.allocation} allocation, {report.requested}"
    say_table(Table(title, ("", "before", "after", "removed"), cost_cells(report), left=("",)))
    folded = sum(g.folded_width < g.width for g in report.groups)
    say(f"groups folded: {folded} of {len(report.groups)}; weight axes left alone: {len(report.refusals)}")
    for group in report.groups if verbose else ():
        how = f" (cluster {group.cluster}, repair {group.repair})" if group.cluster else ""
        say(f"  {group.name}: {group.width} -> {group.folded_width}{how}")
    shared.print_refusals(report.refusals, verbose=verbose)
    say(*_measured_lines(report), *(f"note: {note}" for note in report.notes))
    say(f"{shared.wrote(output)} in {report.seconds:.1f} s")


def _measured_lines(report: Any) -> Iterator[str]:
    merged, inputs = report.merged, report.inputs
    if merged is not None:
        yield from (f"share of {network}" for network in merged.networks)
    for measured, held_out in ((report.fidelity, False), (report.fidelity_on_samples, True)):
        for fidelity in measured.outputs if measured is not None else ():
            of = "the given samples that were held out" if held_out else f"samples of {measured.inputs}"
            yield f"fidelity on {measured.samples} {'of ' if held_out else ''}{of}: {fidelity}"
        yield from () if measured is None else measured.lines
    if report.estimate_line:
        yield report.estimate_line
    if report.latency is not None:
        yield shared.latency_line(report.latency, "the first" if merged is None else "all networks beside each other")
    if merged is not None and merged.latency is not None:
        yield merged.beside_one
    yield from (str(record) for record in (report.refinement, report.quantization) if record is not None)
    if inputs is not None:
        yield f"run on {inputs.samples} samples of {inputs.kind}: {inputs.reason}"
