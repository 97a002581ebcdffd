"""A benchmark job: a model with fixed shapes, its inputs, and the expected outputs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from onnxfold.edge_bench.runners.runner import BenchJob
from onnxfold.export.api import open_model
from onnxfold.export.parity import reference_inputs, run_reference
from onnxfold.export.tflite.shapes import fix_to_one_sample
from onnxfold.graph.files.save import save
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView

#: Inputs that outputs are compared on.
SAMPLES = 20


def prepare_job(
    model: str | Path,
    work: Path,
    *,
    name: str = "",
    inputs: Sequence[Mapping[str, Array]] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    samples: int = SAMPLES,
    warm_up: int = 10,
    repeats: int = 100,
    threads: int = 1,
    seed: int = 0,
) -> BenchJob:
    """Write a model for inferences of one sample, and compute what it should give."""
    view = open_model(model, input_shapes)
    fix_to_one_sample(view)
    path = work / "model.onnx"
    save(view, path)
    job_inputs = [dict(feeds) for feeds in inputs] if inputs is not None else _synthetic(view, samples, seed)
    reference = [list(outputs.values()) for outputs in run_reference(path, job_inputs)]
    return BenchJob(
        onnx=str(path), name=name or Path(model).stem, inputs=job_inputs, reference=reference,
        warm_up=warm_up, repeats=repeats, threads=threads, seed=seed, work=work,
    )  # fmt: skip


def relative_error(reference: Sequence[Sequence[Array]], outputs: Sequence[Sequence[Array]]) -> float:
    """Return the largest difference over the largest reference value, of all inferences and outputs.

    Outputs may have any shape of the same size; what is not finite on one side only differs infinitely.
    """
    worst = 0.0
    for place in range(len(reference[0]) if reference else 0):
        a = np.concatenate([np.asarray(r[place], np.float64).reshape(-1) for r in reference])
        b = np.concatenate([np.asarray(o[place], np.float64).reshape(-1) for o in outputs])
        finite = np.isfinite(a)
        if a.shape != b.shape or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
            return float("inf")
        if not np.isfinite(b[finite]).all():
            return float("inf")
        largest = float(np.abs(a[finite]).max(initial=0.0))
        error = float(np.abs(a[finite] - b[finite]).max(initial=0.0))
        worst = max(worst, error / largest if largest else error)
    return worst


def _synthetic(view: GraphView, samples: int, seed: int) -> list[dict[str, Array]]:
    """Return synthetic inputs; the batch is 1 unless the model fixes another."""
    return [dict(feeds) for feeds in reference_inputs(view, samples=samples, seed=seed)]
