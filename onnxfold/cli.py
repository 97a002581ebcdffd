"""The command line: the group of commands, and how errors end it."""

import logging
import sys

import click

from onnxfold._version import __version__
from onnxfold.commands.bench import bench
from onnxfold.commands.compare import compare
from onnxfold.commands.demo import demo
from onnxfold.commands.export import export
from onnxfold.commands.fold import fold
from onnxfold.commands.inspect import inspect
from onnxfold.errors import OnnxFoldError, OutputClosedError, OutputError
from onnxfold.terminal import drop_output, log_to_terminal, prepare_streams, say, say_traceback, say_usage_error


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, "-v", "--version", prog_name="onnxfold")
@click.option("--verbose", is_flag=True, help="Log what happens.")
@click.option("--debug", is_flag=True, help="Show tracebacks of errors.")
@click.pass_context
def cli(context: click.Context, verbose: bool, debug: bool) -> None:
    """Make trained ONNX models structurally smaller, without data and without training."""
    context.obj = {"debug": debug, "verbose": verbose}
    log_to_terminal(logging.DEBUG if debug else logging.INFO if verbose else logging.ERROR)


for _command in (fold, inspect, compare, export, bench, demo):
    cli.add_command(_command)


def main() -> None:
    """Run the command line; errors raised on purpose are one line."""
    prepare_streams()
    debug = "--debug" in sys.argv
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.ClickException as error:
        say_usage_error(error)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        say("interrupted", error=True)
        sys.exit(130)
    except OnnxFoldError as error:
        if debug:
            say_traceback(error)
        if isinstance(error, OutputError):
            drop_output()
        if not isinstance(error, OutputClosedError):
            say(f"error: {error}", error=True)
        sys.exit(error.exit_code)
    except Exception as error:
        if debug:
            say_traceback(error)
        text = " ".join(str(error).split())[:300]
        say(
            f"error: {type(error).__name__}: {text}; this is a bug in onnxfold, --debug shows the traceback",
            error=True,
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
