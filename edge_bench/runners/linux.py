"""Measurement on Linux: this machine, and a board such as a Jetson Nano through the system's OpenSSH."""

import base64
import io
import json
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import version_converter

from onnxfold.budget.devices import DeviceProfile
from onnxfold.edge_bench.job import BenchJob, deviation, write_tflite
from onnxfold.edge_bench.measure_script import INTERPRETERS, last_measurement
from onnxfold.edge_bench.result import BenchResult
from onnxfold.errors import ConfigError, ExportError
from onnxfold.export.parity import TOLERANCE, from_layout, to_layouts
from onnxfold.export.tflite.convert import Ports
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.graph.tensors import Array
from onnxfold.machine.python import python

HOST = "host"
SCRIPT = "measure_script.py"
_OLDER = "model_older_opset.onnx"
#: What onnxruntime 1.10 reads, the last one for Python 3.6, which a Jetson Nano has.
OPSET, IR_VERSION = 15, 8
INSTALL = "pip install onnxruntime, ai-edge-litert or tflite-runtime"
_NO_PYTHON: Final = "ONNXFOLD-NO-PYTHON3"
#: ssh's own exit code for a connection that did not come about or broke.
_SSH_FAILED = 255

# Unpacks the archive that comes in, runs the script and leaves nothing behind; Python 3.6 is enough. `-c` puts the
# folder where ssh begins first on the path: nothing is imported from there.
_UNPACK_AND_RUN = f"""
import sys; sys.path.remove("") if "" in sys.path else None
import os, runpy, shutil, sys, tarfile, tempfile
folder = tempfile.mkdtemp(prefix="onnxfold-")
try:
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        archive.extractall(folder)
    sys.argv = [os.path.join(folder, name) for name in ("{SCRIPT}", "job.json")]
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    shutil.rmtree(folder, ignore_errors=True)
"""


def run_here(job: BenchJob, *, timeout_s: float = 600.0) -> list[BenchResult]:
    """Measure in every interpreter here, in other processes: memory is the model's, not onnxfold's."""
    package = pack(job, timeout=timeout_s)
    try:
        out, complaint, _ = _run(python("-c", _UNPACK_AND_RUN), package, (timeout_s + 10.0) * len(INTERPRETERS))
    except subprocess.TimeoutExpired as error:
        return [failure(job, HOST, f"no result within {error.timeout:g} s")]
    answer = last_measurement(out)
    if answer is None:
        return [failure(job, HOST, f"the measuring script failed: {complaint}")]
    return rows(job, HOST, package, answer)


@dataclass(frozen=True)
class SshRunner:
    """Copies model and measuring script over one connection, runs the script, and removes both.

    The board needs python3 and one of onnxruntime, ai-edge-litert and tflite-runtime. ssh never asks for anything: keys
    and known hosts must be set up. Ports, keys and shared connections (``ControlMaster``) are read from ssh's own
    configuration.
    """

    host: str  # ``user@host``, a name from ssh's configuration, or ``ssh://user@host:port``
    options: tuple[str, ...] = ()  # further arguments of ssh
    timeout_s: float = 300.0  # time that an interpreter has
    #: Time to connect; the whole answer is waited for as long as all interpreters may take, and this for each.
    connect_s: int = 15

    def __post_init__(self) -> None:
        if self.host.startswith("-") or any(c.isspace() for c in self.host):
            raise ConfigError(f"host '{self.host}' is not a name that ssh accepts: give user@host")

    def missing(self) -> str:
        """Return the missing part: ssh itself."""
        return "" if shutil.which("ssh") else "ssh is not installed: apt install openssh-client"

    def run(self, job: BenchJob, device: DeviceProfile) -> list[BenchResult]:
        """Measure in every interpreter of the board."""
        name, package = device.name, pack(job, timeout=self.timeout_s)
        limit = (self.timeout_s + self.connect_s) * len(INTERPRETERS)
        try:
            out, complaint, code = _run(self._command(), package, limit)
        except subprocess.TimeoutExpired:
            return [failure(job, name, f"'{self.host}' gave no answer within {limit:g} s")]
        except OSError as error:
            return [failure(job, name, f"ssh cannot be started: {error.strerror}", status="unavailable")]
        answer = last_measurement(out)
        if answer is not None:
            return rows(job, name, package, answer)
        if _NO_PYTHON in out:
            reason = f"'{self.host}' has no python3: install it there, apt install python3"
            return [failure(job, name, reason, status="unavailable")]
        if code == _SSH_FAILED:
            try_this = f"this must work: ssh -o BatchMode=yes {self.host} true"
            reason = f"ssh does not reach '{self.host}': {complaint}; {try_this}"
            return [failure(job, name, reason, status="unavailable")]
        return [failure(job, name, f"the measuring script failed on '{self.host}': {complaint}")]

    def _command(self) -> list[str]:
        python3 = f"exec python3 -c {shlex.quote(_UNPACK_AND_RUN)}"
        # Through sh: the user's login shell there may be anything.
        script = f"command -v python3 >/dev/null 2>&1 || {{ echo {_NO_PYTHON}; exit 127; }}; {python3}"
        return [
            "ssh", "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={self.connect_s}",
            "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4",
            *self.options, "--", self.host, f"sh -c {shlex.quote(script)}",
        ]  # fmt: skip


def _run(command: list[str], package: "Package", timeout_s: float) -> tuple[str, str, int]:
    """Run a command that reads a package; return its output, its last complaint, and its exit code."""
    done = subprocess.run(command, input=package.to_tar(), capture_output=True, check=False, timeout=timeout_s)
    out, err = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    return out, lines[-1] if lines else f"exit code {done.returncode}", done.returncode


@dataclass(frozen=True)
class Package:
    """Files for a measurement, by name, and what is needed to read its answer."""

    files: Mapping[str, bytes]  # script, job, models and inputs
    ports: Ports | None  # of the .tflite file; none where the model cannot be exported
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
    models = {"onnx": ["model.onnx"]}
    files = {"model.onnx": Path(job.onnx).read_bytes(), "onnx.npz": _npz(job.inputs)}
    ports, refusal = None, ""
    try:
        ports = write_tflite(job)
        inputs = _npz([to_layouts(feeds, ports) for feeds in job.inputs])
        files |= {"model.tflite": job.tflite.read_bytes(), "tflite.npz": inputs}
        models["tflite"] = ["model.tflite"]
    except ExportError as error:
        refusal = str(error)
    older = older_twin(job.onnx)
    if older is not None:
        files[_OLDER] = older
        models["onnx"].append(_OLDER)
    request = {
        "files": models, "inputs": {kind: f"{kind}.npz" for kind in models}, "ports": len(job.inputs[0]),
        "samples": len(job.inputs), "threads": job.threads, "warm_up": job.warm_up, "repeats": job.repeats,
        "timeout": timeout,
    }  # fmt: skip
    files["job.json"] = json.dumps(request).encode()
    files[SCRIPT] = resources.files("onnxfold.edge_bench").joinpath(SCRIPT).read_bytes()
    return Package(files, ports, refusal)


def rows(job: BenchJob, device: str, package: Package, answer: Mapping[str, Any]) -> list[BenchResult]:
    """Return a row for each interpreter that a machine has, or one that says that it has none."""
    system = answer["system"]
    if not answer["runs"]:
        return [failure(job, device, f"no interpreter found: {INSTALL}", status="unavailable", details=system)]
    results = [_row(job, device, package, run, system) for run in answer["runs"]]
    if package.refusal:
        reason = f"no TFLite interpreter runs the model: {package.refusal}"
        results.append(failure(job, device, reason, runtime="TFLite", details=system))
    return results


def failure(job: BenchJob, device: str, reason: str, *, status: str = "failed", **more: Any) -> BenchResult:
    """Return a row of a measurement that was not made."""
    row: dict[str, Any] = {"model": job.name, "device": device, "method": "measured-device", "threads": job.threads}
    return BenchResult(**row, status=status, reason=reason, **more)


def _row(
    job: BenchJob, device: str, package: Package, run: Mapping[str, Any], system: Mapping[str, Any]
) -> BenchResult:
    name = run["interpreter"]
    if "error" in run:
        return failure(job, device, f"{name}: {run['error']}", runtime=name, details=system)
    outputs = [
        [np.frombuffer(base64.b64decode(a["data"]), np.dtype(a["dtype"])).reshape(a["shape"]) for a in arrays]
        for arrays in run["outputs"]
    ]
    if dict(INTERPRETERS)[name] == "tflite" and package.ports is not None:
        layouts = package.ports.outputs.values()
        outputs = [[from_layout(a, layout) for a, layout in zip(arrays, layouts, strict=True)] for arrays in outputs]
    runtime = f"{name} {run['version']}"
    error, reason = deviation(job, outputs, TOLERANCE)
    if reason:
        return failure(job, device, reason, runtime=runtime, details=system)
    low, median, high = (float(q) for q in np.quantile(run["seconds"], (0.25, 0.5, 0.75)))
    settings = (f"{key.replace('_', ' ')} {system[key]}" for key in ("power_mode", "governor") if key in system)
    return BenchResult(
        model=job.name, device=device, method="measured-device", runtime=runtime, threads=job.threads,
        clock_hz=run["clock_hz"], warm_up=job.warm_up, repeats=len(run["seconds"]),
        latency_s=median, latency_low_s=low, latency_high_s=high,
        ram_bytes=run["memory"], flash_bytes=len(package.files[run["file"]]),
        memory="RAM: growth of the process's resident peak (VmHWM) from loading on; flash: the model's file",
        max_relative_error=error, compared_inputs=len(outputs), basis=", ".join(["measured", *settings]),
        details=dict(system),
    )  # fmt: skip


def _npz(samples: Sequence[Mapping[str, Array]]) -> bytes:
    buffer = io.BytesIO()
    named: dict[str, Any] = {f"{i}/{j}": a for i, feeds in enumerate(samples) for j, a in enumerate(feeds.values())}
    np.savez(buffer, **named)
    return buffer.getvalue()


def older_twin(path: str | Path) -> bytes | None:
    """Return a model of a newer operator set as one of :data:`OPSET`, None where it is old enough or cannot be."""
    model = to_model(load(path))
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
