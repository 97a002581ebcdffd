"""Versions and machine of a coverage measurement."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import onnxfold

_ROOT = Path(__file__).parents[2]


def describe_environment() -> list[str]:
    def git(*args: str) -> str:
        done = subprocess.run(["git", *args], capture_output=True, text=True, check=False, cwd=_ROOT)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", "onnxfold", "passes")
    state = f"commit {git('rev-parse', '--short', 'HEAD')}{' with uncommitted changes' if changed else ''}"
    packages = ", ".join(f"{p} {version(p)}" for p in ("torch", "onnx", "onnxruntime", "onnxscript", "numpy"))
    return [
        f"- onnxfold {onnxfold.__version__}, {state}",
        f"- Python {platform.python_version()}, {packages}",
        f"- {platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    ]
