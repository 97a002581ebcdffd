"""Jobs for .tflite runtimes, each run by the interpreter that has the runtime."""

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from onnxfold.export.api import open_model
from onnxfold.export.fusion import PREPARE
from onnxfold.export.parity import reference_inputs, run_reference, to_layouts
from onnxfold.export.tflite.convert import Converted, Ports, convert
from onnxfold.graph.view import GraphView

RUNNER = Path(__file__).with_name("runner.py")
RUNTIMES = ("ai_edge_litert", "tflite_runtime", "tflite_micro")
#: Bytes that TensorFlow Lite Micro may use for activations on this machine.
_ARENA = 256 << 20


@dataclass
class Row:
    """One network, dense or folded."""

    name: str
    form: str
    operators: dict[str, int] = field(default_factory=dict)
    refused: str = ""
    spread: float = 0.0
    results: dict[str, dict[str, Any]] = field(default_factory=dict)


def write_job(row: Row, path: Path, folder: Path) -> dict[str, Any]:
    """Convert, and store inputs with onnxruntime's outputs for the runner."""
    view = open_model(path)
    converted = convert_prepared(view)
    row.operators = converted.operators
    file = folder / f"{path.stem}.{row.form}.tflite"
    file.write_bytes(converted.to_bytes(row.name))
    feeds, outputs = reference_samples(view)
    row.spread = min(float(np.ptp(v, axis=0).max() / max(float(np.abs(v).max()), 1e-30)) for v in outputs.values())
    np.savez(file.with_suffix(".npz"), **arrays_of(converted.ports, feeds, outputs))
    names = {side: list(layouts) for side, layouts in converted.ports._asdict().items()}
    batched = all((view.shape(name) or ())[:1] == (None,) for name in view.input_names)
    return {"file": str(file), "data": str(file.with_suffix(".npz")), "arena": _ARENA, "batched": batched, **names}


def arrays_of(ports: Ports, feeds: dict[str, Any], outputs: dict[str, Any]) -> dict[str, Any]:
    """Return inputs and outputs in the layouts of a file, by what the runner calls them."""
    arrays = {f"in/{n}": values for n, values in to_layouts(feeds, ports).items()}
    return arrays | {f"out/{n}": outputs[n].transpose(layout.perm) for n, layout in ports.outputs.items()}


def reference_samples(view: GraphView) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return inputs and onnxruntime's outputs; all samples in one where the batch is free."""
    batches = reference_inputs(view)
    outputs = run_reference(view, batches)
    if not all((view.shape(name) or ())[:1] == (None,) for name in view.input_names):
        return batches[0], outputs[0]
    first, second = ({n: np.concatenate([p[n] for p in parts]) for n in parts[0]} for parts in (batches, outputs))
    return first, second


def convert_prepared(view: GraphView) -> Converted:
    prepared = view.copy()
    PREPARE(prepared)
    return convert(prepared)


def run_jobs(python: Path, runtime: str, jobs: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Run jobs in an interpreter; a crash is a result."""
    todo, done = folder / "jobs.json", folder / "results.json"
    todo.write_text(json.dumps(jobs))
    done.write_text("[]")
    ended = subprocess.run([python, RUNNER, runtime, todo, done], capture_output=True, text=True, check=False)
    results = json.loads(done.read_text())
    return results + [{"error": f"the runtime ended with code {ended.returncode}"}] * (len(jobs) - len(results))
