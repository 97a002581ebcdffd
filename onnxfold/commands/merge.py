"""The command ``onnxfold merge``."""

from pathlib import Path
from typing import Any

import click
import cloup

from onnxfold.commands import shared
from onnxfold.commands.fold import Delivery
from onnxfold.config import INT8, NO_REFINEMENT
from onnxfold.config.option import METHOD, OUTPUT
from onnxfold.files import check_outputs
from onnxfold.progress import fold_stages

_MORE = {
    shared.FIRST: [
        cloup.option(
            "--width", type=float,
            help="Channels of every group, over those of one network; with as many as there are networks, the result "
            "is exact.  [default: 1 without another goal]",
        ),
        cloup.option(
            "--heads", default="auto", metavar="HOW",
            help="What becomes of the outputs: join (classes of all networks, in their order), average, first (A's), "
            "or auto: average where shapes agree, else join.",
        ),
        shared.report_file,
    ],
    METHOD: [
        cloup.option(
            "--until", metavar="NODE", help="Merge no channels behind this node of A; each network keeps its own."
        )
    ],
    OUTPUT: [
        cloup.option("--labels", metavar="NAME[,NAME...]", help="Names of the classes of OUT, for its metadata."),
        *shared.about_result,
    ],
}  # fmt: skip


@cloup.command(cls=shared.FoldCommand)
@click.argument("models", metavar="A.onnx B.onnx [C.onnx ...]", type=shared.PATH, nargs=-1, required=True)
@click.argument("output", metavar="OUT.onnx", type=shared.PATH)
@shared.options_for("merge", _MORE, {"cluster": ("matching", "zip", "by-place")})
@click.pass_context
def merge(
    context: click.Context, /, models: tuple[Path, ...], output: Path, labels: str | None, no_verify: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Merge trained networks of one layout into OUT.onnx, at the width of one of them by default.

    Layers correspond by structure, not by name, and may have different widths. The networks are joined into one exact
    graph, which is folded.
    """
    from onnxfold import merging
    from onnxfold.graph.files.model_files import claims_on
    from onnxfold.graph.files.save import outputs_of

    delivery = Delivery.of(context, output, options)
    check_outputs(
        [*outputs_of(output, "OUT.onnx", external_data=options["save_as_external_data"]), *delivery.outputs],
        claims_on(list(models), shared.files_named(options)),
    )
    request = shared.values_of(options) | {name: options[name] for name in ("width", "heads", "until")}
    names = () if labels is None else tuple(name.strip() for name in labels.split(","))
    stages = fold_stages(quantizes=request["dtype"] == INT8, refines=request["refine"] != NO_REFINEMENT)
    with delivery.progress(stages) as tell:
        result = merging.merge(models, labels=names, verify=not no_verify, progress=tell, **request)
    delivery.deliver(result)
