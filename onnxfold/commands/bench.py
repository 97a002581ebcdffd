"""The command ``onnxfold bench``."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import click

from onnxfold.commands import shared
from onnxfold.files import STDOUT, check_outputs, option_outputs, write
from onnxfold.progress import ProgressBar
from onnxfold.terminal import say, say_table


@click.command()
@click.argument("models", metavar="MODEL...", type=shared.PATH, nargs=-1, required=True)
@click.option(
    "--device", "devices", type=shared.Names("onnxfold.budget.devices:known_devices", "host", "all"), multiple=True,
    default=("all",), metavar="NAME",
    help="A profile's name or TOML file, 'host' for this machine, or 'all'.",
)  # fmt: skip
@click.option("--port", metavar="PORT", help="Serial port of the microcontroller, e.g. /dev/ttyACM0.")
@click.option("--host", metavar="USER@HOST", help="ssh address of a board with Linux.")
@click.option("--threads", type=click.IntRange(1), default=1, help="Threads of multi-threaded runtimes.")
@click.option("--repeats", type=click.IntRange(1), default=100, help="Number of timed inferences.")
@click.option("--warm-up", type=click.IntRange(0), default=10, help="Number of untimed inferences before them.")
@click.option("--input-shapes", type=shared.SHAPE, multiple=True, help="Sizes of free dimensions; a free batch is 1.")
@click.option("--seed", type=int, default=0, help="Seed of the inputs.")
@click.option("--json", "json_path", type=shared.PATH, metavar="FILE", help="Write all rows as JSON; - prints it.")
@click.option("--html", "html_path", type=shared.PATH, metavar="FILE", help="Write a page with charts.")
@shared.option("max_memory")
@shared.common
@click.pass_context
def bench(
    context: click.Context, /, models: tuple[Path, ...], devices: tuple[str, ...], json_path: Path | None,
    html_path: Path | None, **options: Any,
) -> None:  # fmt: skip
    """Measure or estimate latency, memory and outputs of models on devices.

    Every row names its method. A board is measured if --port or --host reaches it. Rows of other boards come from
    emulation or from estimates, or say what to install.
    """
    from onnxfold.edge_bench.bench import bench as run
    from onnxfold.edge_bench.result import notes, render_html, tables
    from onnxfold.graph.files.model_files import claims_on

    check_outputs(
        [
            *option_outputs(json_path, "--json", shared.JSON, may_be_stdout=True),
            *option_outputs(html_path, "--html", shared.HTML),
        ],
        claims_on(models, {f"--device {name}": Path(name) for name in devices if name.endswith(".toml")}),
    )
    options["input_shapes"] = dict(options["input_shapes"])
    with ProgressBar() as tell:
        rows = run(models, devices, progress=tell, **options)
    contents = shared.report_files(json_path, lambda: json.dumps(_results(rows), indent=2) + "\n")
    contents |= shared.report_files(html_path, lambda: render_html(rows))
    write(contents)  # before anything is printed: nobody may be there to read it
    with shared.json_on_stdout(json_path == STDOUT, partial(_results, rows)):
        for table in tables(rows):
            say_table(table)
        say(*notes(rows), *map(shared.wrote, contents))
    if not any(row.status in ("ok", "does-not-fit") for row in rows):
        say("nothing could be measured", error=True)
        context.exit(1)


def _results(rows: list[Any]) -> dict[str, Any]:
    from onnxfold._version import __version__

    return {"onnxfold": __version__, "results": [row.to_dict() for row in rows]}
