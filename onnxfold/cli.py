"""The command line: the group of commands, and how errors end it."""

import logging
import sys
import traceback

import click

from onnxfold._version import __version__
from onnxfold.commands.bench import bench
from onnxfold.commands.compare import compare
from onnxfold.commands.demo import demo
from onnxfold.commands.export import export
from onnxfold.commands.fold import fold
from onnxfold.commands.inspect import inspect
from onnxfold.errors import OnnxFoldError


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


for _command in (fold, inspect, compare, export, bench, demo):
    cli.add_command(_command)


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


if __name__ == "__main__":
    main()
