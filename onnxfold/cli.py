"""The command line: arguments and printing, nothing else."""

import json
import logging
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from onnxfold._version import __version__
from onnxfold.errors import ConfigError, OnnxFoldError
from onnxfold.progress import ProgressBar

_SHOWN_REFUSALS = 8


class _Pairs(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic since click 8.2
    """``KEY<separator>VALUE`` as a pair."""

    def __init__(self, name: str, separator: str, convert: Callable[[str], Any]) -> None:
        self.name = name
        self._separator = separator
        self._convert = convert

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        """Split at the last separator: names may contain it."""
        if isinstance(value, tuple):
            return value
        key, found, text = str(value).rpartition(self._separator)
        try:
            return (
                (key, self._convert(text)) if found and key else self.fail(f"'{value}' is not {self.name}", param, ctx)
            )
        except ValueError:
            self.fail(f"'{value}' is not {self.name}", param, ctx)


_RATIO = _Pairs("GLOB=R", "=", float)
_SHAPE = _Pairs("NAME:D,D,...", ":", lambda text: tuple(int(d) for d in text.split(",")))
_PATH = click.Path(path_type=Path)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, "-v", "--version", prog_name="onnxfold")
@click.option("--verbose", is_flag=True, help="Log what happens.")
@click.option("--debug", is_flag=True, help="Show tracebacks of errors.")
@click.pass_context
def cli(context: click.Context, verbose: bool, debug: bool) -> None:
    """Make trained ONNX models structurally smaller, without data and without training."""
    context.obj = {"debug": debug, "verbose": verbose}
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.INFO if verbose else logging.ERROR, format="%(name)s: %(message)s"
    )


def _common(function: Callable[..., None]) -> Callable[..., None]:
    """Let ``--verbose`` and ``--debug`` also stand behind the command."""
    function = click.option("--debug", "local_debug", is_flag=True, help="Show tracebacks of errors.")(function)
    return click.option("--verbose", "local_verbose", is_flag=True, help="Log what happens.")(function)


@cli.command()
@click.argument("model", metavar="IN.onnx", type=_PATH)
@click.argument("output", metavar="OUT.onnx", type=_PATH)
@click.option("--sparsity", type=float, help="Fraction of the weights to remove.  [default: 0.5]")
@click.option("--channel-ratio", type=float, help="Fraction of the channels to remove from every group.")
@click.option("--ratio", "ratios", type=_RATIO, multiple=True, help="Channel ratio of matching groups; 0 keeps them.")
@click.option("--method", default="fold-ar", show_default=True, help="How channels are merged and repaired.")
@click.option("--allocation", default="uniform", show_default=True, help="How widths are chosen.")
@click.option("--round-to", type=int, default=1, show_default=True, help="Make widths multiples of this.")
@click.option("--keep", multiple=True, metavar="GLOB", help="Keep groups with a matching node whole.")
@click.option("--input-shapes", type=_SHAPE, multiple=True, help="Sizes to assume for free input dimensions.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of everything random.")
@click.option("--report", type=_PATH, help="Write a JSON report.")
@click.option("--save-as-external-data", is_flag=True, help="Write the weights to OUT.onnx.data.")
@click.option("--no-verify", is_flag=True, help="Do not run the result in onnxruntime before writing it.")
@_common
@click.pass_context
def fold(
    context: click.Context, /, model: Path, output: Path, report: Path | None, no_verify: bool, **options: Any
) -> None:
    """Fold IN.onnx into OUT.onnx."""
    from onnxfold import api
    from onnxfold.graph.save import check_writable, replacing

    _set_flags(context, options)
    for path in filter(None, (output, report)):
        check_writable(path)
        if path.exists() and model.exists() and path.samefile(model):
            raise ConfigError(f"'{path}' is the input model: give another path, the input is never overwritten")
    options["ratios"] = dict(options["ratios"])
    options["input_shapes"] = dict(options["input_shapes"])
    with ProgressBar() as tell:
        result = api.fold(model, options.pop("sparsity"), verify=not no_verify, progress=tell, **options)
    result.save(output)
    if report is not None:
        with replacing(report) as file:
            file.write(result.report.to_json().encode())
    _print_fold(result.report, output, verbose=context.obj["verbose"])


@cli.command()
@click.argument("model", metavar="IN.onnx", type=_PATH)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--input-shapes", type=_SHAPE, multiple=True, help="Sizes to assume for free input dimensions.")
@_common
@click.pass_context
def inspect(context: click.Context, /, model: Path, as_json: bool, **options: Any) -> None:
    """Show fold groups, widths, and what cannot be folded with the reason."""
    from onnxfold import api

    _set_flags(context, options)
    found = api.inspect_model(model, input_shapes=dict(options["input_shapes"]))
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2))
        return
    _print_inspection(found, verbose=context.obj["verbose"])


@cli.command()
@click.argument("a", metavar="A.onnx", type=_PATH)
@click.argument("b", metavar="B.onnx", type=_PATH)
@click.option("--data", type=_PATH, help=".npz with arrays named after the inputs; with labels 'y' also accuracy.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the noise used without --data.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_common
@click.pass_context
def compare(
    context: click.Context, /, a: Path, b: Path, data: Path | None, seed: int, as_json: bool, **options: Any
) -> None:
    """Measure how close B.onnx is to A.onnx on the same inputs."""
    from onnxfold import api

    _set_flags(context, options)
    arrays = api.load_arrays(data) if data is not None else {}
    labels = arrays.pop("y", None)
    found = api.compare(a, b, arrays or None, labels, seed=seed)
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2))
        return
    click.echo(f"{found.samples} samples of {found.inputs}")
    for output in found.outputs:
        click.echo("  " + _fidelity_line(output))
    if found.accuracy_a is not None and found.accuracy_b is not None:
        click.echo(f"  accuracy {found.accuracy_a:.2%} -> {found.accuracy_b:.2%}")


@cli.command()
@click.option("--out", type=_PATH, default=Path("demo_output"), show_default=True, help="Folder for the folded models.")
@click.option("--model", type=click.Choice(["lenet5_2x", "lenet5"]), default="lenet5_2x", show_default=True)
@_common
@click.pass_context
def demo(context: click.Context, /, out: Path, model: str, **options: Any) -> None:
    """Fold a bundled trained model to several sizes and show its accuracy."""
    from onnxfold.demo import run_demo

    _set_flags(context, options)
    run_demo(out, model)


def main() -> None:
    """Run the command line; errors raised on purpose are one line."""
    debug = "--debug" in sys.argv
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except OnnxFoldError as error:
        if debug:
            traceback.print_exc()
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except Exception as error:
        if debug:
            raise
        text = " ".join(str(error).split())[:300] or type(error).__name__
        click.echo(
            f"error: {type(error).__name__}: {text}; this is a bug in onnxfold, --debug shows the traceback",
            err=True,
        )
        sys.exit(1)


def _set_flags(context: click.Context, options: dict[str, Any]) -> None:
    context.obj["verbose"] |= options.pop("local_verbose")
    context.obj["debug"] |= options.pop("local_debug")
    if context.obj["verbose"] or context.obj["debug"]:
        logging.getLogger().setLevel(logging.DEBUG if context.obj["debug"] else logging.INFO)


def _print_fold(report: Any, output: Path, *, verbose: bool) -> None:
    from rich.table import Table

    table = Table(title=f"{report.method}, {report.allocation} allocation, {report.requested}", title_justify="left")
    for column in ("", "before", "after", "removed"):
        table.add_column(column, justify="left" if not column else "right")
    before, after = report.before, report.after
    rows: list[tuple[str, int | None, int | None]] = [
        ("parameters", before.parameters, after.parameters),
        ("MACs", before.macs, after.macs),
        ("size (bytes)", before.size_bytes, after.size_bytes),
        ("channels in groups", sum(g.width for g in report.groups), sum(g.folded_width for g in report.groups)),
    ]
    for name, old, new in rows:
        if old is None or new is None:
            table.add_row(name, "unknown", "unknown", "")
        else:
            table.add_row(name, f"{old:,}", f"{new:,}", f"{1 - new / old:.1%}" if old else "")
    _console().print(table)
    folded = sum(g.folded_width < g.width for g in report.groups)
    click.echo(f"groups folded: {folded} of {len(report.groups)}; weight axes left alone: {len(report.refusals)}")
    if verbose:
        for group in report.groups:
            click.echo(f"  {group.name}: {group.width} -> {group.folded_width}")
    _print_refusals(report.refusals, verbose=verbose)
    if report.fidelity is not None:
        for fidelity in report.fidelity.outputs:
            click.echo(f"fidelity on {report.fidelity.inputs}: {_fidelity_line(fidelity)}")
    for note in report.notes:
        click.echo(f"note: {note}")
    click.echo(f"wrote {output} in {report.seconds:.1f} s")


def _print_inspection(found: Any, *, verbose: bool) -> None:
    from rich.table import Table

    table = Table(title="fold groups", title_justify="left")
    for column, justify in (("group", "left"), ("width", "right"), ("weights", "right"), ("share", "right"),
                            ("producers", "left"), ("consumers", "left")):  # fmt: skip
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for group in found.to_dict()["groups"]:
        table.add_row(
            group["name"], str(group["width"]), f"{group['weights']:,}", f"{group['share']:.1%}",
            _names(group["producers"], verbose=verbose), _names(group["consumers"], verbose=verbose),
        )  # fmt: skip
    _console().print(table)
    share = found.share
    click.echo(
        f"{share.either:.1%} of the {share.weights:,} conv/linear weights lie in fold groups "
        f"(output axes {share.outputs:.1%}, input axes {share.inputs:.1%})"
    )
    _print_refusals(found.refusals, verbose=verbose)


def _print_refusals(refusals: list[Any], *, verbose: bool) -> None:
    shown = refusals if verbose else refusals[:_SHOWN_REFUSALS]
    for refusal in shown:
        held = f"{refusal.weights:,} weights"
        click.echo(f"left alone: {held}, {refusal.op_type} '{refusal.node}', {refusal.axis}: {refusal.reason}")
    if len(refusals) > len(shown):
        click.echo(f"  ... and {len(refusals) - len(shown)} more (--verbose shows all)")


def _names(names: list[str], *, verbose: bool) -> str:
    if verbose or len(names) <= 2:
        return "\n".join(names)
    return f"{names[0]}\n... {len(names) - 1} more"


def _fidelity_line(fidelity: Any) -> str:
    line = f"{fidelity.output}: relative error {fidelity.relative_error:.3g}"
    return line if fidelity.top1_agreement is None else f"{line}, top-1 agreement {fidelity.top1_agreement:.1%}"


def _console() -> Any:
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=120)


if __name__ == "__main__":
    main()
