"""Runner for this machine, in every installed interpreter."""

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from onnxfold.budget.devices import DeviceProfile
from onnxfold.edge_bench.linux import SCRIPT, failure, pack, rows
from onnxfold.edge_bench.measure_script import INTERPRETERS, last_measurement
from onnxfold.edge_bench.result import BenchResult
from onnxfold.edge_bench.runners.runner import BenchJob
from onnxfold.machine.python import python

HOST = "host"


@dataclass(frozen=True)
class HostRunner:
    """Runs the measuring script in a second process, so that memory is the model's and not onnxfold's."""

    timeout_s: float = 600.0  # time that an interpreter has
    name: str = HOST

    def missing(self) -> str:
        """Nothing can be missing: onnxruntime is a requirement of onnxfold."""
        return ""

    def run(self, job: BenchJob, device: DeviceProfile | None) -> list[BenchResult]:
        """Measure in onnxruntime, and in the TFLite interpreters that are installed."""
        package = pack(job, timeout=self.timeout_s)
        with tempfile.TemporaryDirectory(dir=job.work) as folder:
            for file, content in package.files.items():
                (Path(folder) / file).write_bytes(content)
            command = python(str(Path(folder) / SCRIPT), str(Path(folder) / "job.json"))
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
                    timeout=(self.timeout_s + 10.0) * len(INTERPRETERS),
                )  # fmt: skip
            except subprocess.TimeoutExpired as error:
                return [failure(job, HOST, f"no result within {error.timeout:g} s", status="failed")]
        answer = last_measurement(done.stdout)
        if answer is None:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            return [failure(job, HOST, f"the measuring script failed: {lines[-1]}", status="failed")]
        return rows(job, HOST, package, answer)
