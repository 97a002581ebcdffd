"""The command ``onnxfold inspect``."""

from pathlib import Path
from typing import Any

import click

from onnxfold.commands.shared import PATH, common, option, print_refusals, values_of
from onnxfold.terminal import Table, say, say_json, say_table

#: Rows of the table of latencies without --verbose.
_SHOWN_LAYERS = 20


@click.command()
@click.argument("model", metavar="IN.onnx|DIR", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@option("input_shapes", "allow_cache_change", "per_layer_cache")
@click.option("--latency", is_flag=True, help="Run the model in onnxruntime, and show where the time goes.")
@option("threads", "max_memory")
@common
@click.pass_context
def inspect(context: click.Context, /, model: Path, as_json: bool, **options: Any) -> None:
    """Show fold groups, widths, the reasons why other weights stay, and with --latency the time of every layer."""
    from onnxfold import api

    inspection = api.inspect_model(model, latency=options["latency"], **values_of(options))
    if as_json:
        say_json(inspection.to_dict())
        return
    verbose = context.obj["verbose"]
    rows = [
        (
            group["name"], str(group["width"]), f"{group['weights']:,}", f"{group['share']:.1%}",
            _names(group["producers"], verbose=verbose), _names(group["consumers"], verbose=verbose),
        )
        for group in inspection.to_dict()["groups"]
    ]  # fmt: skip
    columns = ("group", "width", "weights", "share", "producers", "consumers")
    say_table(Table("fold groups", columns, rows, left=("group", "producers", "consumers")))
    share = inspection.share
    say(
        f"{share.either:.1%} of the {share.weights:,} conv/linear weights lie in fold groups "
        f"(output axes {share.outputs:.1%}, input axes {share.inputs:.1%})"
    )
    macs = "" if inspection.size.macs is None else f"{inspection.size.macs:,} {inspection.size.macs_title}, "
    say(f"{inspection.parameters:,} parameters, {macs}{inspection.size.size_bytes:,} bytes")
    if inspection.spare:
        part = inspection.spare / inspection.parameters
        say(f"without loss: {inspection.spare:,} weights ({part:.1%}) can go, see `onnxfold fold --lossless`")
    print_refusals(inspection.refusals, verbose=verbose)
    if inspection.takes:
        say(f"model takes {inspection.takes}")
    say(*(f"note: {note}" for note in inspection.notes))
    if inspection.latency is not None:
        _print_latency(inspection.latency, verbose=verbose)


def _print_latency(times: Any, *, verbose: bool) -> None:
    from onnxfold.report import milliseconds

    slowest = sorted(times.layers, key=lambda layer: -layer.seconds)
    shown = slowest if verbose else slowest[:_SHOWN_LAYERS]
    total = sum(layer.seconds for layer in times.layers) or 1.0  # the rest of a run passes between them
    rows = [
        (
            layer.name, layer.op_type, "x".join(map(str, layer.shape or ())),
            milliseconds(layer.seconds), f"{layer.seconds / total:.1%}",
        )
        for layer in shown
    ]  # fmt: skip
    rest = sum(layer.seconds for layer in slowest[len(shown) :])
    if rest:
        rows.append((f"... {len(slowest) - len(shown)} more", "", "", milliseconds(rest), f"{rest / total:.1%}"))
    columns = ("layer", "operator", "output", "ms", "share")
    say_table(Table("where the time goes, slowest first", columns, rows, left=columns[:3], narrow=("ms", "share")))
    count = f"{times.threads} thread" if times.threads == 1 else f"{times.threads} threads"
    say(f"one run takes {milliseconds(times.seconds)} ms (median, spread {times.spread:.0%}; onnxruntime, {count})")
    say(
        f"times of layers are from onnxruntime's profile of {times.runs} runs, which adds a microsecond to each: what "
        "is fused into a layer, and changes of its layout, count there"
    )


def _names(names: list[str], *, verbose: bool) -> list[str]:
    return names if verbose or len(names) <= 2 else [names[0], f"... {len(names) - 1} more"]
