"""Folds of real files by the command, each in a process of its own, and what comes of them."""

import contextlib
import io
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.in_child import run_in_child
from benchmarks.real.images import FORMS, real_inputs
from onnxfold import compare
from onnxfold.cli import main
from onnxfold.errors import OnnxFoldError
from onnxfold.graph.files.load import load
from onnxfold.graph.run.session import Session
from onnxfold.inputs.images.synthetic import noise_inputs

Row = dict[str, Any]
SPARSITY = "0.3"


def fold_cheaply(path: Path, limit: float) -> Row:
    """Fold a file on a few generated inputs; return how that ends, and whether onnxruntime runs the result."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "folded.onnx"
        row = _fold(path, target, ["--samples", "4", "--input-seconds", "5", "--no-cache", "--no-verify"], limit)
        row["runs"] = run_in_child(lambda: _runs(target), limit) if target.exists() else ""
        if row["runs"] not in ("", "yes"):
            row["original runs"] = run_in_child(lambda: _runs(path), limit)
    return row


def fold_and_judge(path: Path, data: Path, limit: float) -> list[Row]:
    """Fold a file by defaults and on real images; return what was printed, and what others of the images say."""
    shown, held_out = run_in_child(lambda: real_inputs(path.stem, Session(path).inputs, data), limit)
    sizes = []
    if FORMS[path.stem].size is not None:
        shape = ",".join(map(str, (1, *next(iter(shown.values())).shape[1:])))
        sizes = ["--input-shapes", f"{next(iter(shown))}:{shape}"]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        samples, target = Path(folder) / "shown.npz", Path(folder) / "folded.onnx"
        np.savez(samples, **shown)
        for kind, options in (("defaults", []), ("images", ["--calibration", str(samples)])):
            target.unlink(missing_ok=True)
            row = _fold(path, target, [*sizes, *options, "--no-cache", "--force"], limit)
            row |= {"inputs": kind, "samples": len(next(iter(held_out.values()))), "true": "", "state": ""}
            if target.exists():
                row |= run_in_child(lambda: _judge(path, target, held_out), limit) or {}
            rows.append(row)
    return rows


def _fold(path: Path, target: Path, options: list[str], limit: float) -> Row:
    """Run the command; return its exit code, the first line of its refusal, its verdict and its processor time."""
    words = ["fold", str(path), str(target), "--sparsity", SPARSITY, *options]
    code, text, seconds = run_in_child(lambda: _command(words), limit) or (None, "", limit)
    lines = [line for line in text.splitlines() if line.strip()]
    reason = next((_line(line) for line in lines if line.startswith("error")), "")
    if code is None:
        reason = f"error: not done in {limit:.0f} s of processor time"
    verdict = next((m.group(0) for line in lines if (m := re.search(r"verdict: [^;]*", line))), "")
    estimate = next((line for line in lines if line.startswith("estimated agreement")), "")
    return {
        "file": path.stem, "code": code, "reason": reason, "verdict": _line(verdict), "estimate": estimate,
        "seconds": round(seconds, 1),
    }  # fmt: skip


def _command(words: list[str]) -> tuple[int, str, float]:
    """Return the exit code of a command, what it prints, and its processor time."""
    printed = io.StringIO()
    start, code = time.process_time(), 0
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            main(words)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return code, printed.getvalue(), time.process_time() - start


def _runs(path: Path) -> str:
    """Return 'yes' where onnxruntime loads and runs a file, or why not."""
    try:
        session = Session(path)
        session.run(noise_inputs(session.inputs, samples=1, seed=0, view=load(path)))
    except OnnxFoldError as error:
        return _line(str(error))
    return "yes"


def _judge(path: Path, target: Path, held_out: dict[str, Any]) -> Row:
    try:
        verdict = compare(path, target, held_out).verdict
    except OnnxFoldError as error:
        return {"true": _line(str(error))}
    return {"true": str(verdict), "state": verdict.state}


def _line(text: str) -> str:
    return " ".join(text.split())[:400]
