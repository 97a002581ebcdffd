"""The command line: the group of commands, and the handling of errors."""

import errno
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

import click

from onnxfold._version import __version__
from onnxfold.commands.bench import bench
from onnxfold.commands.compare import compare
from onnxfold.commands.demo import demo
from onnxfold.commands.export import export
from onnxfold.commands.fold import fold
from onnxfold.commands.inspect import inspect
from onnxfold.commands.merge import merge
from onnxfold.commands.sweep import sweep
from onnxfold.errors import ConfigError, OnnxFoldError, OutputClosedError, OutputError
from onnxfold.files import reason
from onnxfold.machine.python import keep_folders_out
from onnxfold.terminal import drop_output, log_to_terminal, prepare_streams, say, say_traceback, say_usage_error


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True})
@click.version_option(__version__, "-v", "--version", prog_name="onnxfold")
@click.option("--verbose", is_flag=True, help="Log what happens.")
@click.option("--debug", is_flag=True, help="Show tracebacks of errors.")
@click.pass_context
def cli(context: click.Context, verbose: bool, debug: bool) -> None:
    """Make trained ONNX models structurally smaller, without data and without training."""
    context.obj = {"debug": debug, "verbose": verbose}
    log_to_terminal(logging.DEBUG if debug else logging.INFO if verbose else logging.ERROR)


for _command in (fold, merge, inspect, compare, export, bench, sweep, demo):
    cli.add_command(_command)


#: Errors of a file that could not grow: the disk is full, or a limit is reached.
_OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: Errors that say something of a file and where it lies, and nothing of the code that uses it.
_OF_FILES = (errno.EACCES, errno.EIO, errno.EISDIR, errno.ELOOP, errno.EMFILE, errno.ENAMETOOLONG, errno.ENFILE,
             errno.ENOTDIR, errno.EPERM, errno.EROFS)  # fmt: skip


class _TerminatedError(BaseException):
    """SIGTERM, as an exception that everything cleans up after, as after Ctrl-C."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; errors raised on purpose are one line."""
    prepare_streams()
    keep_folders_out()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    debug = "--debug" in arguments
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        _check_surroundings(arguments)
        code = cli.main(arguments, standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)  # click returns what `context.exit` was given
    except _TerminatedError:
        say("terminated", error=True)
        sys.exit(143)
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
        say(f"error: {_describe(error)}", error=True)
        sys.exit(1)
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_surroundings(arguments: Sequence[str]) -> None:
    """Refuse surroundings that neither this program nor the libraries below it can run in."""
    if any("\0" in argument for argument in arguments):  # a system passes none, a program that calls this may
        raise ConfigError("an argument contains a zero byte, which no path or name may: leave it out")
    try:
        os.getcwd()
    except OSError:
        raise ConfigError("the working folder does not exist any more: change to another one") from None


def _describe(error: Exception) -> str:
    """Return an error that nothing below has explained: of the machine, of its files, or of this program."""
    if isinstance(error, OSError) and error.errno in _OF_DISKS:  # what users asked for is explained where it is written
        return f"cannot write '{error.filename or tempfile.gettempdir()}': {reason(error)}"
    if isinstance(error, OSError) and error.filename is not None and error.errno in _OF_FILES:
        return f"'{os.fsdecode(error.filename)}' cannot be used: {reason(error)}"
    if isinstance(error, MemoryError):
        return "out of memory: a lower --max-memory refuses such a request earlier"
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}; this is a bug in onnxfold, --debug shows the traceback"


def _terminate(number: int, frame: FrameType | None) -> None:
    raise _TerminatedError
