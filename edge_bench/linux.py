"""Measurement of a job on a Linux machine, local or reached by ssh, and its rows."""

import base64
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import version_converter

from onnxfold.edge_bench.job import BenchJob, TFLiteFile, relative_error, write_tflite
from onnxfold.edge_bench.measure_script import INTERPRETERS
from onnxfold.edge_bench.result import BenchResult
from onnxfold.errors import ExportError
from onnxfold.export.parity import TOLERANCE
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.graph.tensors import Array

SCRIPT = "measure_script.py"
_OLDER = "model_older_opset.onnx"
#: What onnxruntime 1.10 reads, the last one for Python 3.6, which a Jetson Nano has.
OPSET, IR_VERSION = 15, 8
INSTALL = "pip install onnxruntime, ai-edge-litert or tflite-runtime"


@dataclass(frozen=True)
class Package:
    """Files for a measurement, by name, and what is needed to read its answer."""

    files: Mapping[str, bytes]  # script, job, models and inputs
    tflite: TFLiteFile | None  # none where the model cannot be exported; `refusal` then says why
    refusal: str  # why there is no .tflite file

    def to_tar(self) -> bytes:
        """Return the files as one archive."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for name, content in self.files.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        return buffer.getvalue()


def pack(job: BenchJob, *, timeout: float) -> Package:
    """Put together what a measurement needs; every interpreter there gets `timeout` seconds."""
    names = load(job.onnx).input_names
    files = {
        "model.onnx": Path(job.onnx).read_bytes(),
        "onnx.npz": _npz([[feeds[n] for n in names] for feeds in job.inputs]),
    }
    tflite, refusal = None, ""
    try:
        tflite = write_tflite(job)
        files |= {"model.tflite": tflite.path.read_bytes(), "tflite.npz": _npz(tflite.feeds(job))}
    except ExportError as error:
        refusal = str(error)
    kinds = [kind for kind in ("onnx", "tflite") if f"model.{kind}" in files]
    older = older_twin(job.onnx)
    if older is not None:
        files[_OLDER] = older
    request: dict[str, Any] = {
        "files": {kind: [f"model.{kind}"] for kind in kinds},
        "inputs": {kind: f"{kind}.npz" for kind in kinds},
        "ports": len(names),
        "samples": len(job.inputs),
        "threads": job.threads,
        "warm_up": job.warm_up,
        "repeats": job.repeats,
        "timeout": timeout,
    }
    if older is not None:
        request["files"]["onnx"].append(_OLDER)
    files["job.json"] = json.dumps(request).encode()
    files[SCRIPT] = resources.files("onnxfold.edge_bench").joinpath(SCRIPT).read_bytes()
    return Package(files, tflite, refusal)


def rows(job: BenchJob, device: str, package: Package, answer: Mapping[str, Any]) -> list[BenchResult]:
    """Return a row for each interpreter that a machine has, or one that says that it has none."""
    system = answer["system"]
    results = [_row(job, device, package, run, system) for run in answer["runs"]]
    if package.refusal:
        reason = f"no TFLite interpreter runs the model: {package.refusal}"
        results.append(failure(job, device, reason, runtime="TFLite", status="failed", details=system))
    if not answer["runs"]:
        return [failure(job, device, f"no interpreter found: {INSTALL}", status="unavailable", details=system)]
    return results


def failure(
    job: BenchJob, device: str, reason: str, *, status: str, runtime: str = "", details: Mapping[str, Any] | None = None
) -> BenchResult:
    """Return a row of a measurement that was not made."""
    return BenchResult(
        model=job.name, device=device, method="measured-device", status=status, reason=reason, runtime=runtime,
        threads=job.threads, details=details or {},
    )  # fmt: skip


def _row(
    job: BenchJob, device: str, package: Package, run: Mapping[str, Any], system: Mapping[str, Any]
) -> BenchResult:
    name = run["interpreter"]
    if "error" in run:
        return failure(job, device, f"{name}: {run['error']}", status="failed", runtime=name, details=system)
    outputs = [[_unpack(packed) for packed in arrays] for arrays in run["outputs"]]
    kind = dict(INTERPRETERS)[name]
    if kind == "tflite" and package.tflite is not None:
        outputs = package.tflite.to_onnx(outputs)
    error = relative_error(job.reference, outputs)
    runtime = f"{name} {run['version']}"
    if not error <= TOLERANCE:
        reason = f"outputs differ from onnxruntime's by {error:.2g} of the largest one (tolerance {TOLERANCE:g})"
        return failure(job, device, reason, status="failed", runtime=runtime, details=system)
    low, median, high = (float(q) for q in np.quantile(run["seconds"], (0.25, 0.5, 0.75)))
    return BenchResult(
        model=job.name, device=device, method="measured-device", runtime=runtime, threads=job.threads,
        clock_hz=run["clock_hz"], warm_up=job.warm_up, repeats=len(run["seconds"]),
        latency_s=median, latency_low_s=low, latency_high_s=high,
        ram_bytes=run["memory"], flash_bytes=len(package.files[run["file"]]),
        memory="RAM: growth of the process's resident peak (VmHWM) from loading on; flash: the model's file",
        max_relative_error=error, compared_inputs=len(outputs), basis=_basis(system), details=dict(system),
    )  # fmt: skip


def _basis(system: Mapping[str, Any]) -> str:
    settings = [
        f"{what} {system[key]}"
        for key, what in (("power_mode", "power mode"), ("governor", "governor"))
        if key in system
    ]
    return ", ".join(["measured", *settings])


def _npz(samples: Sequence[Sequence[Array]]) -> bytes:
    buffer = io.BytesIO()
    named: dict[str, Any] = {f"{i}/{j}": a for i, arrays in enumerate(samples) for j, a in enumerate(arrays)}
    np.savez(buffer, **named)
    return buffer.getvalue()


def _unpack(packed: Mapping[str, Any]) -> Array:
    data = base64.b64decode(packed["data"])
    return np.frombuffer(data, np.dtype(packed["dtype"])).reshape(packed["shape"])


def older_twin(path: str | Path) -> bytes | None:
    """Return a model of a newer operator set as one of :data:`OPSET`, None where it is old enough or cannot be."""
    view = load(path)
    model = to_model(view)
    if all(o.version <= OPSET for o in model.opset_import if o.domain in ("", "ai.onnx")):
        return None
    try:
        twin = version_converter.convert_version(model, OPSET)
        twin.ir_version = min(twin.ir_version, IR_VERSION)
        onnx.checker.check_model(twin, full_check=True)
    except Exception:  # the converter raises what it likes for operators that the older set does not have
        return None
    content: bytes = twin.SerializeToString()
    return content
