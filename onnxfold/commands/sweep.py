"""The command ``onnxfold sweep``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import cloup

from onnxfold.commands import shared
from onnxfold.config import NO_REFINEMENT, OPTIONS
from onnxfold.config.option import LISTED, MACHINE, OUTPUT, SHARED
from onnxfold.config.quantities import parse_bytes
from onnxfold.errors import ConfigError
from onnxfold.files import Output, check_outputs, check_own, write
from onnxfold.progress import ProgressBar
from onnxfold.terminal import say, say_json, say_table

_SHOWN = 12


_MORE: dict[str, Sequence[shared.Decorator]] = {
    shared.FIRST: [
        cloup.option(
            "--out", type=shared.PATH, metavar="DIR", default="sweep",
            help="Folder of the results, where a sweep that was ended goes on.",
        ),
        cloup.option("--seeds", type=click.IntRange(1), default=1, help="Number of seeds, from 0."),
        cloup.option(
            "--data", type=shared.PATH, metavar="FILE.npz|DIR",
            help="Measure agreement on these samples and, with labels 'y', accuracy.",
        ),
        cloup.option(
            "--pick", metavar="EXPR",
            help="Name the best model that meets this, e.g. 'latency < 0.5x and agreement > 0.95', and the command "
            "that makes it.",
        ),
        cloup.option(
            "--prefer", metavar="NAME", help="What decides between several.  [default: accuracy or agreement]"
        ),
    ],
    OUTPUT: [
        cloup.option("--resume/--no-resume", default=True, help="Keep results of earlier runs."),
        cloup.option("--json", "as_json", is_flag=True, help="Print the rows, or the picked one, as JSON."),
        shared.verbose_flag, shared.debug_flag,
    ],
    MACHINE: [
        shared.option("threads"),
        cloup.option(
            "--no-latency", is_flag=True, help="Leave out the last phase, which measures latencies one by one."
        ),
        cloup.option(
            "--jobs", type=click.IntRange(1), metavar="N", help="Workers of this machine.  [default: one per core]"
        ),
        cloup.option(
            "--scheduler", metavar="tcp://HOST:PORT|tls://HOST:PORT",
            help="Run on the workers of this scheduler of dask.distributed; tls:// takes the certificates that dask's "
            "configuration names, tcp:// trusts its network.",
        ),
        cloup.option(
            "--retries", type=click.IntRange(0), default=3,
            help="How often a job begins again if its worker on this machine dies.",
        ),
    ],
}  # fmt: skip


@cloup.command(cls=shared.FoldCommand)
@click.argument("models", metavar="[MODEL]...", type=shared.PATH, nargs=-1)
@shared.options_for("sweep", _MORE)
@click.pass_context
def sweep(
    context: click.Context, /, models: tuple[Path, ...], out: Path, pick: str | None, prefer: str | None, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Fold models in every combination of goals, methods, refinements and seeds; measure, compare and pick.

    Every goal is one value of --sparsity, of a limit or of --device. Without MODEL, --pick asks the results in DIR.
    """
    from onnxfold.sweeps.answers.pick import check_preference
    from onnxfold.sweeps.answers.pick import pick as best_of
    from onnxfold.sweeps.answers.query import parse
    from onnxfold.sweeps.page import render_page
    from onnxfold.sweeps.results import SweepFolder, newest

    expression = None if pick is None else parse(pick)
    check_preference(prefer)
    folder = SweepFolder(out)
    rows = _run(models, folder, options) if models else newest(folder.rows().values())
    if not rows:
        raise ConfigError(f"'{folder.path}' holds no results: give models to fold, or --out with the folder of a sweep")
    chosen = None
    try:
        if expression is not None:
            chosen = best_of(rows, expression, prefer)
    finally:  # the page is there also where no model is what was asked for
        if models:
            write({folder.page: render_page(rows, chosen).encode()})
    _answer(rows, folder, chosen, as_json=as_json)
    if all(row.status != "done" for row in rows):
        context.exit(1)


def _run(models: tuple[Path, ...], folder: Any, options: dict[str, Any]) -> list[Any]:
    from onnxfold.graph.files.model_files import claims_on
    from onnxfold.sweeps.job import SweepRequest, goals_of
    from onnxfold.sweeps.page import is_page
    from onnxfold.sweeps.run import Place, run_sweep

    if options["jobs"] is not None and options["scheduler"] is not None:
        raise ConfigError("--jobs is about workers of this machine, --scheduler about others: give one of them")
    roles = {f"--{name}": options[name] for name in ("data", "calibration", "tokenizer")}
    if folder.path.exists():
        check_outputs([Output(folder.page, "the page"), Output(folder.whole, "the results")], claims_on(models, roles))
        check_own([folder.page], is_page, "a sweep")
    named = {name: value for name, value in shared.values_of(options).items() if value not in (None, (), {})}
    same = {n: str(v) if isinstance(v, Path) else v for n, v in named.items() if OPTIONS[n].in_sweep == SHARED}
    methods = named.pop("method", ("fold-ls",))
    refinements = named.pop("refine", (NO_REFINEMENT,))
    listed = {name: value for name, value in named.items() if OPTIONS[name].in_sweep == LISTED}
    request = SweepRequest(models, goals_of(listed), methods, options["seeds"], same, options["data"], refinements)
    memory = None if options["max_memory"] is None else parse_bytes(options["max_memory"])
    place = Place(options["jobs"], options["scheduler"], options["retries"], memory)
    with ProgressBar() as tell:
        return run_sweep(
            request, folder, place, tell, resume=options["resume"],
            latency_threads=None if options["no_latency"] else options["threads"],
        )  # fmt: skip


def _answer(rows: list[Any], folder: Any, chosen: Any, *, as_json: bool) -> None:
    from onnxfold.sweeps.answers.pick import details, summary

    if as_json:
        say_json(chosen.to_dict() if chosen is not None else [row.to_dict() for row in rows])
        return
    if chosen is not None:
        say(*details(chosen, folder.path))
        return
    say_table(summary(rows))
    failed = [row for row in rows if row.status != "done"]
    say(*(f"{r.status}: {r.model}, {r.goal}, {r.how}, seed {r.seed}: {r.error}" for r in failed[:_SHOWN]))
    if len(failed) > _SHOWN:
        say(f"  ... and {len(failed) - _SHOWN} more")
    if folder.page.exists():
        say(f"wrote {folder.page}")
