"""The scripts of the GitHub Action, with a command that is not onnxfold: what they run, tell and fail for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "integrations" / "action"
SIZE = {"parameters": 100, "macs": None, "size_bytes": 400}
FOLDED: dict[str, Any] = {
    "sparsity": 0.5, "before": SIZE, "after": {**SIZE, "parameters": 50}, "accuracy": None,
    "estimate": {"agreement": 0.91},
    "fidelity": {"inputs": "held-out dead leaves", "outputs": [{"top1_agreement": 0.8, "cosine": 0.97}]},
}  # fmt: skip
COMPARED: dict[str, Any] = {
    "inputs": "given data", "outputs": [{"top1_agreement": None, "cosine": 0.5}], "accuracy_b": 0.75,
    "failures": ["output 'y': cosine 0.5 is below 0.9"],
}  # fmt: skip

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on this machine")


def _command(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/usr/bin/env bash\n{text}")
    (folder / name).chmod(0o755)


def _run(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    files = {name: str(folder / name) for name in ("GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STEP_SUMMARY")}
    environment = {**os.environ, **files, "RUNNER_TEMP": str(folder), **variables}
    environment["PATH"] = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", str(SCRIPTS / script)], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )


def _fold(folder: Path, **variables: str) -> tuple[int, dict[str, str], str, list[str]]:
    """Run the second step; return its exit code, its outputs, the summary, and the commands that it ran."""
    (folder / "fold.json").write_text(json.dumps(FOLDED))
    (folder / "compare.json").write_text(json.dumps(COMPARED))
    _command(folder / "bin", "onnxfold", 'echo "$@" >>ran; cat "$1.json"; [ "$1" = fold ]\n')
    done = _run(
        "fold.sh", folder, MODEL="m.onnx", OUTPUT="o.onnx", ARGUMENTS="--sparsity 0.5", REPORT="p.html", **variables
    )
    outputs = dict(line.split("=", 1) for line in (folder / "GITHUB_OUTPUT").read_text().splitlines())
    ran = (folder / "ran").read_text().splitlines()
    return done.returncode, outputs, (folder / "GITHUB_STEP_SUMMARY").read_text(), ran


def test_a_fold_alone_tells_its_estimate(tmp_path: Path) -> None:
    code, outputs, summary, ran = _fold(tmp_path)
    assert code == 0
    assert ran == ["fold m.onnx o.onnx --sparsity 0.5 --report p.html --json"]
    assert outputs == {
        "sparsity": "0.5", "parameters": "50", "agreement": "0.8", "estimate": "0.91", "accuracy": "", "cosine": "0.97"
    }  # fmt: skip
    assert "| estimated agreement on data | | 0.91 |" in summary


def test_a_threshold_that_is_missed_fails_the_job_after_it_was_told(tmp_path: Path) -> None:
    code, outputs, summary, ran = _fold(tmp_path, DATA="my data.npz", MIN_COSINE="0.9", MIN_AGREEMENT="99%")
    assert code == 1
    assert ran[1] == "compare m.onnx o.onnx --data my data.npz --min-agreement 99% --min-cosine 0.9 --json"
    assert (outputs["accuracy"], outputs["cosine"], outputs["agreement"]) == ("0.75", "0.5", "")
    assert "**Not met:** output 'y': cosine 0.5 is below 0.9" in summary


@pytest.mark.parametrize(
    ("variables", "installed"),
    [({}, "/the checkout"), ({"EXTRAS": "torch,images"}, "/the checkout[torch,images]"),
     ({"PACKAGE": "onnxfold==9"}, "onnxfold==9"), ({"PACKAGE": "none"}, None)],
)  # fmt: skip
def test_what_is_installed(tmp_path: Path, variables: dict[str, str], installed: str | None) -> None:
    made = 'mkdir -p "$3/bin"; printf \'#!/bin/bash\\necho "${@: -1}" >got\\n\' >"$3/bin/python"\n'
    _command(tmp_path / "bin", "python3", f'{made}chmod +x "$3/bin/python"\n')
    done = _run(
        "install.sh", tmp_path, GITHUB_ACTION_PATH="/the checkout", **{"EXTRAS": "", "PACKAGE": "", **variables}
    )
    assert done.returncode == 0, done.stderr
    got = tmp_path / "got"
    assert (got.read_text().strip() if got.exists() else None) == installed
