"""The generator of C code in the process of the tests: a process of its own takes four seconds to read its templates.

Tests that replace the generator, and the project of a module, still start one.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from onnxfold.export.firmware import generated_c


@pytest.fixture(autouse=True)
def quick_generator(monkeypatch: pytest.MonkeyPatch, shared_folder: Path) -> None:
    if find_spec("emx_onnx_cgen") is None:
        return
    from emx_onnx_cgen import cli
    from jinja2 import Environment, FileSystemBytecodeCache

    start, compiled = subprocess.run, shared_folder / "templates"
    compiled.mkdir(exist_ok=True)

    def run(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if "emx_onnx_cgen" not in command or "PYTHONPATH" in os.environ:
            return start(command, **options)
        out, err = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = cli.main(command[command.index("emx_onnx_cgen") + 1 :])
        return subprocess.CompletedProcess(list(command), code, out.getvalue(), err.getvalue())

    class Keeping(Environment):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options, bytecode_cache=FileSystemBytecodeCache(str(compiled)))

    monkeypatch.setattr("emx_onnx_cgen.codegen.c_emitter.Environment", Keeping)
    monkeypatch.setattr(generated_c.subprocess, "run", run)
