"""``onnxfold bench``."""

import json
from pathlib import Path
from typing import Any

import click

from onnxfold.commands.shared import PATH, SHAPE, common, max_memory, set_flags
from onnxfold.progress import ProgressBar
from onnxfold.terminal import say, say_table


@click.command()
@click.argument("models", metavar="MODEL...", type=PATH, nargs=-1, required=True)
@click.option(
    "--device", "devices", multiple=True, default=("all",), show_default=True, metavar="NAME",
    help="A profile's name or TOML file, 'host' for this machine, or 'all'.",
)  # fmt: skip
@click.option("--port", metavar="PORT", help="Serial port of the microcontroller, e.g. /dev/ttyACM0.")
@click.option("--host", metavar="USER@HOST", help="Address for ssh of the board with Linux.")
@click.option("--cloud", is_flag=True, help="Ask Edge Impulse, too (EI_API_KEY); this sends them the models.")
@click.option(
    "--threads", type=click.IntRange(1), default=1, show_default=True, help="Threads of runtimes that have any."
)
@click.option("--repeats", type=click.IntRange(1), default=100, show_default=True, help="Inferences that are timed.")
@click.option("--warm-up", type=click.IntRange(0), default=10, show_default=True, help="Inferences before these.")
@click.option("--input-shapes", type=SHAPE, multiple=True, help="Sizes of free dimensions; a free batch is 1.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the inputs.")
@click.option("--json", "json_path", type=PATH, metavar="FILE", help="Write all rows as JSON.")
@click.option("--html", "html_path", type=PATH, metavar="FILE", help="Write a page with charts.")
@click.option("--png", "png_path", type=PATH, metavar="FILE", help="Write a chart (needs matplotlib).")
@max_memory()
@common
@click.pass_context
def bench(
    context: click.Context,
    /,
    models: tuple[Path, ...],
    devices: tuple[str, ...],
    json_path: Path | None,
    html_path: Path | None,
    png_path: Path | None,
    **options: Any,
) -> None:
    """Measure models on devices: latency, memory and outputs, each labelled by how it was obtained.

    A board is measured where --port or --host reaches it. What is said of other boards comes from emulation, from
    estimates, or is what to install for them.
    """
    from onnxfold.edge_bench.bench import bench as run
    from onnxfold.edge_bench.chart import check_png
    from onnxfold.edge_bench.table import notes, tables
    from onnxfold.graph.save import check_writable

    set_flags(context, options)
    for path in filter(None, (json_path, html_path, png_path)):
        check_writable(path)
    if png_path is not None:
        check_png()
    options["input_shapes"] = dict(options["input_shapes"])
    with ProgressBar() as tell:
        rows = run(models, devices, progress=tell, **options)
    for table in tables(rows):
        say_table(table)
    for line in notes(rows):
        say(line)
    _write(rows, json_path, html_path, png_path)
    if not any(row.status in ("ok", "does-not-fit") for row in rows):
        say("nothing could be measured", error=True)
        context.exit(1)


def _write(rows: list[Any], json_path: Path | None, html_path: Path | None, png_path: Path | None) -> None:
    from onnxfold._version import __version__
    from onnxfold.edge_bench.chart import render_html, write_png
    from onnxfold.graph.save import replacing

    if json_path is not None:
        content = {"onnxfold": __version__, "results": [row.to_dict() for row in rows]}
        with replacing(json_path) as file:
            file.write((json.dumps(content, indent=2) + "\n").encode())
    if html_path is not None:
        with replacing(html_path) as file:
            file.write(render_html(rows).encode())
    if png_path is not None:
        with replacing(png_path) as file:
            write_png(rows, file)
    for path in filter(None, (json_path, html_path, png_path)):
        say(f"wrote {path}")
