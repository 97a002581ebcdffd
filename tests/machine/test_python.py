"""Nothing that lies in the working folder is imported by the tool, or by what it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onnxfold.machine.python import python

#: Modules that everything here imports.
PLANTED = ("numpy", "onnx", "onnxruntime", "click")
MODEL = Path(__file__).parents[2] / "onnxfold" / "data" / "lenet5.onnx"


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A folder with modules that leave a mark where they are imported."""
    for name in PLANTED:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\n")
    return tmp_path


def _run(command: list[str], trap: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return subprocess.run(command, cwd=trap, env=environment, capture_output=True, text=True, check=False)


def test_the_trap_works(trap: Path) -> None:
    _run([sys.executable, "-c", "import numpy"], trap)
    assert (trap / "ran").exists()


def test_started_interpreters_import_nothing_from_the_working_folder(trap: Path) -> None:
    done = _run(python("-c", "import numpy, onnx; print(numpy.__name__)"), trap)
    assert (done.returncode, done.stdout) == (0, "numpy\n")
    assert not (trap / "ran").exists()


def test_a_script_imports_nothing_that_lies_beside_it(trap: Path) -> None:
    (trap / "job.py").write_text("import numpy\nprint(numpy.__name__)\n")
    assert _run(python("job.py"), trap).stdout == "numpy\n"
    assert not (trap / "ran").exists()


@pytest.mark.parametrize("command", [["-m", "onnxfold", "inspect"], ["-m", "onnxfold", "bench", "--device", "host"]])
def test_commands_import_nothing_from_the_working_folder(command: list[str], trap: Path) -> None:
    done = _run([sys.executable, *command, str(MODEL)], trap)
    assert done.returncode == 0, done.stderr
    assert not (trap / "ran").exists()


def test_processes_are_started_in_this_way() -> None:
    """No other module names the interpreter, but a script that begins itself once more in its own folder."""
    root = Path(__file__).parents[2]
    modules = [p for folder in ("onnxfold", "edge_bench", "export", "passes") for p in (root / folder).rglob("*.py")]
    named = {p.relative_to(root).as_posix() for p in modules if "sys.executable" in p.read_text(encoding="utf-8")}
    assert named <= {"onnxfold/machine/python.py", "edge_bench/measure_script.py"}
