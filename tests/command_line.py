"""Commands in a process each, without the second of imports that a fresh interpreter would cost each.

A server process imports onnxfold once and forks for every command. The child has its own argv, folder, environment,
streams and exit code, as a command of a user has; `python -m onnxfold` itself is left to tests that are about it
(:func:`fresh_onnxfold`).
"""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
import tempfile
import traceback
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]

#: Seconds after which a command that hangs writes where it does to its stderr, and ends: before pytest ends the worker.
_HANGS = 240.0
#: Processor seconds that commands have used so far; the server's children are not children of the tests' process.
used_seconds = 0.0


def fresh_onnxfold(*args: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command in a new interpreter."""
    command = [sys.executable, "-m", "onnxfold", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def onnxfold(*args: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command in a process forked from the server."""
    global used_seconds
    server, words = _server(), [str(a) for a in args]
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        streams = [str(Path(folder) / name) for name in ("stdout", "stderr")]
        request = {"args": words, "cwd": os.fspath(cwd or Path.cwd()), "env": dict(os.environ), "streams": streams}
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        assert answer, "the process that forks commands has ended"
        code, seconds = json.loads(answer)
        used_seconds += seconds
        output, error = (Path(name).read_text() for name in streams)
    return subprocess.CompletedProcess(["onnxfold", *words], code, output, error)


@cache
def _server() -> subprocess.Popen[str]:
    """Start the server; it ends when this process does, whose end of its input is closed then."""
    code = "from tests.command_line import serve; serve()"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT,
        env=environment,
    )  # fmt: skip


def serve() -> None:
    """Answer every request, a line of JSON, with the exit code of its command and the processor seconds it took."""
    from onnxfold import cli
    from onnxfold.fidelity import comparison  # noqa: F401  # what commands import first when they run

    for line in sys.stdin:
        child = os.fork()
        if not child:
            _run(json.loads(line), cli.main)
        _, status, usage = os.wait4(child, 0)
        # A negative code is a signal's number, as subprocess has it.
        print(json.dumps([os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime]), flush=True)


def _run(request: dict, main) -> None:  # type: ignore[no-untyped-def, type-arg]
    """Be the command; never return."""
    code: object = 0
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, name in enumerate(request["streams"], start=1):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
        faulthandler.dump_traceback_later(_HANGS, exit=True, file=2)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        sys.argv = ["onnxfold", *request["args"]]
        main()
    except SystemExit as done:
        code = done.code
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else code is not None)
