"""The command line inside of the test's process, and the files that tests of it begin with."""

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import numpy as np
import onnx

from onnxfold.cli import main
from testing.models import chain_conv, mlp

#: A fold that runs nothing; without a goal it would be a search.
RUNS_NOTHING = ("--method", "prune-l1", "--allocation", "uniform", "--no-verify")
FAST = (*RUNS_NOTHING, "--sparsity", "0.4")


@dataclass(frozen=True)
class Done:
    code: int
    stdout: str
    stderr: str


def onnxfold(*arguments: object) -> Done:
    """Run a command as `onnxfold` does, its way to end included."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main([str(a) for a in arguments])
        except SystemExit as done:
            return Done(int(done.code or 0), out.getvalue(), err.getvalue())
    raise AssertionError("the command line ends by exiting")


def write_model(path: Path, *, weights_in: str = "", seed: int = 0, images: bool = False) -> Path:
    """Write a small model, its weights perhaps in another file."""
    model = chain_conv(seed) if images else mlp(seed, widths=(64, 48))
    if weights_in:
        onnx.save_model(
            model, str(path), save_as_external_data=True, location=weights_in, size_threshold=64
        )  # fmt: skip
    else:
        onnx.save(model, str(path))
    return path


def write_samples(path: Path) -> Path:
    x = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    with path.open("wb") as file:  # by a path, numpy would add an ending
        np.savez(file, x=x)
    return path


def snapshot(folder: Path) -> dict[str, tuple[str, int]]:
    """Return what every file of a folder holds, and its mode."""
    return {
        str(p.relative_to(folder)): (
            hashlib.sha256(p.read_bytes()).hexdigest() if p.is_file() else str(p.lstat().st_ino),
            p.lstat().st_mode,
        )
        for p in sorted(folder.rglob("*"))
    }


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let every file that grows beyond a size fail, as on a full disk."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    sys.stdout.flush()
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0
