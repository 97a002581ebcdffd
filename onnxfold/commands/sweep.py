"""The command ``onnxfold sweep``."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from onnxfold.commands.shared import (
    ALLOCATION,
    CLUSTER,
    DEVICE,
    DTYPE,
    INPUT_KIND,
    METHOD,
    OBJECTIVE,
    PATH,
    REPAIR,
    SHAPE,
    STEP,
    common,
    max_memory,
    pixels,
    set_flags,
    threads,
)
from onnxfold.config.quantities import parse_bytes
from onnxfold.errors import ConfigError, NoModelError
from onnxfold.files import Output, check_outputs, check_own, write
from onnxfold.progress import ProgressBar
from onnxfold.terminal import say, say_json, say_table

_LISTS = ("max_params", "max_macs", "max_ram", "max_flash", "device")
#: Options that all folds share, and that are left to FoldConfig where they are not given.
_SHARED = (
    "cluster", "repair", "allocation", "inputs", "samples", "input_seconds", "calibration", "tokenizer", "mean", "std",
    "channels", "round_to", "objective", "input_shapes", "keep", "dtype", "max_memory",
)  # fmt: skip
_SHOWN = 12


def _words(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Split at commas."""
    return () if value is None else tuple(dict.fromkeys(word.strip() for word in value.split(",") if word.strip()))


@click.command()
@click.argument("models", metavar="[MODEL]...", type=PATH, nargs=-1)
@click.option(
    "--out", type=PATH, metavar="DIR", default="sweep", show_default=True,
    help="Folder of the results, where a sweep that was ended goes on.",
)  # fmt: skip
@click.option("--sparsity", metavar="LIST", help="Sparsities, such as 0.25,0.5 or 0.1:0.9:0.1.  [default: 0.1:0.9:0.1]")
@click.option("--channel-ratio", metavar="LIST", help="Channel ratios, one goal each.")
@click.option(
    "--max-params", callback=_words, metavar="LIST", help="Limits of parameters, e.g. 1M,500K: one goal each."
)
@click.option("--max-macs", callback=_words, metavar="LIST", help="Limits of multiply-accumulates, one goal each.")
@click.option("--max-ram", callback=_words, metavar="LIST", help="Limits of activation memory, one goal each.")
@click.option("--max-flash", callback=_words, metavar="LIST", help="Limits of weights and structure, one goal each.")
@click.option("--device", type=DEVICE, callback=_words, metavar="LIST", help="Devices, one goal each.")
@click.option(
    "--method", "methods", type=METHOD, callback=_words, default="fold-ls", show_default=True, metavar="LIST",
    help="Methods, such as fold-ls,fold-ar.",
)  # fmt: skip
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="Number of seeds, from 0.")
@click.option(
    "--data", type=PATH, metavar="FILE.npz|DIR",
    help="Measure agreement on these samples and, with labels 'y', accuracy.",
)  # fmt: skip
@click.option("--parity", is_flag=True, help="Export every model to TFLite, too, and compare the outputs.")
@click.option("--no-latency", is_flag=True, help="Leave out the last phase, which measures latencies one by one.")
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Workers of this machine.  [default: one per core]")
@click.option(
    "--scheduler",
    metavar="tcp://HOST:PORT|tls://HOST:PORT",
    help="Run on the workers of this scheduler of dask.distributed; tls:// takes the certificates that dask's "
    "configuration names, tcp:// trusts its network.",
)
@click.option(
    "--retries", type=click.IntRange(0), default=3, show_default=True,
    help="How often a job begins again if its worker on this machine dies.",
)  # fmt: skip
@click.option(
    "--resume/--no-resume", default=True, show_default=True, help="Keep what earlier runs of the sweep finished."
)
@click.option(
    "--pick", metavar="EXPR",
    help="Name the best model that meets this, e.g. 'latency < 0.5x and agreement > 0.95', and the command that makes "
    "it.",
)  # fmt: skip
@click.option("--prefer", metavar="NAME", help="What decides between several.  [default: accuracy or agreement]")
@click.option("--json", "as_json", is_flag=True, help="Print the rows, or the picked one, as JSON.")
@click.option("--cluster", type=CLUSTER, metavar="NAME", help="As of fold.")
@click.option("--repair", type=REPAIR, metavar="NAME", help="As of fold.")
@click.option("--allocation", type=ALLOCATION, help="As of fold.")
@click.option("--inputs", type=INPUT_KIND, metavar="KIND", help="As of fold.")
@click.option("--samples", type=int, help="As of fold.")
@click.option("--input-seconds", type=float, metavar="N", help="As of fold.")
@click.option("--calibration", type=PATH, metavar="FILE.npz|FILE.txt|DIR", help="As of fold.")
@click.option("--tokenizer", type=PATH, metavar="FILE.json", help="As of fold.")
@pixels
@click.option("--round-to", type=STEP, help="As of fold.")
@click.option("--objective", type=OBJECTIVE, metavar="NAME", help="As of fold.")
@click.option("--keep", multiple=True, metavar="GLOB", help="As of fold.")
@click.option("--input-shapes", type=SHAPE, multiple=True, help="As of fold.")
@click.option("--dtype", type=DTYPE, metavar="TYPE", help="As of fold.")
@max_memory(expose_value=True)
@threads()
@common
@click.pass_context
def sweep(
    context: click.Context,
    /,
    models: tuple[Path, ...],
    out: Path,
    pick: str | None,
    prefer: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Fold models in every combination of goals, methods and seeds; measure, compare and pick.

    Every goal is one value of --sparsity, of a limit or of --device. Without MODEL, --pick asks the results in DIR.
    """
    from onnxfold.sweeps.pick import check_preference
    from onnxfold.sweeps.query import parse
    from onnxfold.sweeps.results import SweepFolder

    set_flags(context, options)
    expression = None if pick is None else parse(pick)
    check_preference(prefer)
    folder = SweepFolder(out)
    rows = _run(models, folder, options, expression, prefer) if models else _found(folder)
    _answer(rows, folder, expression, prefer, as_json=as_json)
    if all(row.status != "done" for row in rows):
        context.exit(1)


def _run(
    models: tuple[Path, ...], folder: Any, options: dict[str, Any], expression: Any, prefer: str | None
) -> list[Any]:
    """Run what is missing; write the page."""
    from onnxfold.graph.model_files import claims_on
    from onnxfold.sweeps.grid import SweepRequest, goals_of
    from onnxfold.sweeps.page import is_page, render_page
    from onnxfold.sweeps.pick import pick as best_of
    from onnxfold.sweeps.run import Place, run_sweep

    if options["jobs"] is not None and options["scheduler"] is not None:
        raise ConfigError("--jobs is about workers of this machine, --scheduler about others: give one of them")
    roles = {f"--{name}": options[name] for name in ("data", "calibration", "tokenizer")}
    if folder.path.exists():
        check_outputs([Output(folder.page, "the page"), Output(folder.whole, "the results")], claims_on(models, roles))
        check_own([folder.page], is_page, "a sweep")
    shared = {name: options[name] for name in _SHARED if options[name] not in (None, ())}
    if "input_shapes" in shared:
        shared["input_shapes"] = dict(shared["input_shapes"])
    for name in ("calibration", "tokenizer"):
        if name in shared:
            shared[name] = str(shared[name])
    goals = goals_of(
        {name: options[name] for name in ("sparsity", "channel_ratio")}, {name: options[name] for name in _LISTS}
    )
    request = SweepRequest(
        models, goals, options["methods"] or ("fold-ls",), options["seeds"], shared, options["data"], options["parity"]
    )
    memory = None if options["max_memory"] is None else parse_bytes(options["max_memory"])
    place = Place(options["jobs"], options["scheduler"], options["retries"], memory)
    with ProgressBar() as tell:
        rows = run_sweep(
            request, folder, place, tell, resume=options["resume"], measures_latency=not options["no_latency"],
            threads=options["threads"],
        )  # fmt: skip
    chosen = None
    if expression is not None:
        with suppress(NoModelError):  # said when the page is there
            chosen = best_of(rows, expression, prefer)
    write({folder.page: render_page(rows, chosen).encode()})
    return rows


def _found(folder: Any) -> list[Any]:
    from onnxfold.sweeps.results import newest

    rows = newest(folder.rows().values())
    if not rows:
        raise ConfigError(f"'{folder.path}' holds no results: give models to fold, or --out with the folder of a sweep")
    return rows


def _answer(rows: list[Any], folder: Any, expression: Any, prefer: str | None, *, as_json: bool) -> None:
    from onnxfold.sweeps.pick import pick as picked
    from onnxfold.sweeps.summary import details, summary

    chosen = None if expression is None else picked(rows, expression, prefer)
    if as_json:
        say_json(chosen.to_dict() if chosen is not None else [row.to_dict() for row in rows])
        return
    if chosen is not None:
        for line in details(chosen, folder.path):
            say(line)
        return
    say_table(summary(rows))
    failed = [row for row in rows if row.status != "done"]
    for row in failed[:_SHOWN]:
        say(f"{row.status}: {row.model}, {row.goal}, {row.method}, seed {row.seed}: {row.error}")
    if len(failed) > _SHOWN:
        say(f"  ... and {len(failed) - _SHOWN} more")
    if folder.page.exists():
        say(f"wrote {folder.page}")
