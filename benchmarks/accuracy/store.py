"""Result files of the accuracy benchmark: rows that survive an interruption, and the versions used."""

import csv
import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import onnxfold
from onnxfold.files import write

_PACKAGES = ("onnxfold", "onnxruntime", "onnx", "numpy", "scipy", "scikit-learn", "torch", "onnxsim", "matplotlib")
_SOURCES = Path(onnxfold.__file__).parent
#: What decides about a fold's result, and about generated inputs.
_FOLD_CODE = (
    "api.py", "budget/**/*.py", "channels/**/*.py", "cluster/**/*.py", "folding/**/*.py", "graph/**/*.py",
    "inputs/**/*.py", "passes/**/*.py", "quantize/**/*.py", "statistics/**/*.py", "torch_graph/**/*.py",
)  # fmt: skip
_INPUT_CODE = ("inputs/**/*.py", "folding/inputs/*.py", "statistics/*.py", "torch_graph/**/*.py")

Row = dict[str, Any]


def fingerprint(patterns: Iterable[str] = _FOLD_CODE) -> str:
    """Return twelve hexadecimal digits that change with the sources."""
    digest = hashlib.sha256()
    for path in sorted(p for pattern in patterns for p in _matching(pattern)):
        digest.update(path.relative_to(_SOURCES).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _matching(pattern: str) -> list[Path]:
    found = list(_SOURCES.glob(pattern))
    if not found:  # a file that moved must not drop out of the fingerprint
        raise ValueError(f"{_SOURCES} holds no {pattern}")
    return found


def input_fingerprint() -> str:
    """Return the fingerprint of what generates inputs."""
    return fingerprint(_INPUT_CODE)


def environment() -> dict[str, Any]:
    """Return machine, versions and commit."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "threads": {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")},
        "commit": _commit(),
        "code": fingerprint(),
    }


class Store:
    """Rows by kind and key, written after each: all in one JSON file, those of kind 'cells' also in one CSV file.

    Parameters
    ----------
    folder : Path
        Where the files lie; made if it is missing.
    resume : {'', 'same', 'any'}
        Continue what lies there: rows that the same code measured on as many images, or rows of any code.
    images : int
        Number of test images.

    Raises
    ------
    FileExistsError
        If there are rows already and `resume` does not say what to do with them.
    """

    def __init__(self, folder: Path, *, resume: str, images: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.json_path, self.csv_path = folder / "accuracy.json", folder / "accuracy.csv"
        self.environment = environment()
        self.images = images
        self._rows: dict[str, dict[str, Row]] = {}
        if self.json_path.exists():
            if not resume:
                raise FileExistsError(f"'{self.json_path}' exists: give --resume, or another --out")
            self._continue(resume)
        self.csv_path.unlink(missing_ok=True)
        for row in self.rows("cells"):
            self._append(row)

    def rows(self, kind: str) -> list[Row]:
        """Return all rows of one kind, in the order in which they were measured."""
        return list(self._rows.get(kind, {}).values())

    def get(self, kind: str, key: str) -> Row | None:
        """Return a row if it was measured."""
        return self._rows.get(kind, {}).get(key)

    def add(self, kind: str, key: str, row: Row) -> Row:
        """Write a row; returns it with what every row says."""
        common = {
            "images": self.images,
            "code": self.environment["code"],
            "load": round(os.getloadavg()[0], 2),
        }
        complete = {"key": key, **row, **common}
        self._rows.setdefault(kind, {})[key] = complete
        whole = {"environment": self.environment, **{k: list(rows.values()) for k, rows in self._rows.items()}}
        write({self.json_path: f"{json.dumps(whole, indent=1)}\n".encode()})
        if kind == "cells":
            self._append(complete)
        return complete

    def _continue(self, resume: str) -> None:
        stored = json.loads(self.json_path.read_text(encoding="utf-8"))
        code = self.environment["code"]
        for kind, rows in stored.items():
            if kind == "environment":
                continue
            fitting = (r for r in rows if r["images"] == self.images and (resume == "any" or r["code"] == code))
            self._rows[kind] = {r["key"]: r for r in fitting}

    def _append(self, row: Row) -> None:
        plain = {k: v for k, v in row.items() if k != "key" and not isinstance(v, dict | list)}
        is_new = not self.csv_path.exists()
        with self.csv_path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(plain))
            if is_new:
                writer.writeheader()
            writer.writerow(plain)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def _commit() -> str:
    """Return the commit, with a plus sign where the checkout has changes."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+", "--abbrev=12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "unknown"
