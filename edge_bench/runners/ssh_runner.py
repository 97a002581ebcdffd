"""Runners for Linux: this machine, and a board such as a Jetson Nano through the system's OpenSSH."""

import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from onnxfold.budget.devices import DeviceProfile
from onnxfold.edge_bench.job import BenchJob
from onnxfold.edge_bench.linux import SCRIPT, failure, pack, rows
from onnxfold.edge_bench.measure_script import INTERPRETERS, last_measurement
from onnxfold.edge_bench.result import BenchResult
from onnxfold.errors import ConfigError
from onnxfold.machine.python import python

HOST = "host"

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


@dataclass(frozen=True)
class SshRunner:
    """Copies model and measuring script over one connection, runs the script, and removes both.

    The board needs python3 and one of onnxruntime, ai-edge-litert and tflite-runtime. ssh never asks for anything: keys
    and known hosts must be set up. Ports, keys and shared connections (``ControlMaster``) are read from ssh's own
    configuration.
    """

    host: str  # ``user@host``, a name from ssh's configuration, or ``ssh://user@host:port``; empty if none is given
    options: tuple[str, ...] = ()  # further arguments of ssh
    timeout_s: float = 300.0  # time that an interpreter has
    #: Time to connect; the whole answer is waited for as long as all interpreters may take, and this for each.
    connect_s: int = 15
    name: str = "ssh"

    def __post_init__(self) -> None:
        if self.host.startswith("-") or any(c.isspace() for c in self.host):
            raise ConfigError(f"host '{self.host}' is not a name that ssh accepts: give user@host")

    def missing(self) -> str:
        """Return the missing part: an address, or ssh itself."""
        if not self.host:
            return "no address: give --host user@board"
        return "" if shutil.which("ssh") else "ssh is not installed: apt install openssh-client"

    def run(self, job: BenchJob, device: DeviceProfile | None) -> list[BenchResult]:
        """Measure in every interpreter of the board."""
        name = device.name if device is not None else self.host
        package = pack(job, timeout=self.timeout_s)
        limit = (self.timeout_s + self.connect_s) * len(INTERPRETERS)
        try:
            done = subprocess.run(
                self._command(), input=package.to_tar(), capture_output=True, check=False, timeout=limit
            )
        except subprocess.TimeoutExpired:
            return [failure(job, name, f"'{self.host}' gave no answer within {limit:g} s", status="failed")]
        except OSError as error:
            return [failure(job, name, f"ssh cannot be started: {error.strerror}", status="unavailable")]
        out, complaint = done.stdout.decode(errors="replace"), _last_line(done.stderr.decode(errors="replace"))
        answer = last_measurement(out)
        if answer is not None:
            return rows(job, name, package, answer)
        if _NO_PYTHON in out:
            reason = f"'{self.host}' has no python3: install it there, apt install python3"
            return [failure(job, name, reason, status="unavailable")]
        if done.returncode == _SSH_FAILED:
            reason = (
                f"ssh does not reach '{self.host}': {complaint}; this must work: ssh -o BatchMode=yes {self.host} true"
            )
            return [failure(job, name, reason, status="unavailable")]
        return [failure(job, name, f"the measuring script failed on '{self.host}': {complaint}", status="failed")]

    def _command(self) -> list[str]:
        python = f"exec python3 -c {shlex.quote(_UNPACK_AND_RUN)}"
        # Through sh: the user's login shell there may be anything.
        script = f"command -v python3 >/dev/null 2>&1 || {{ echo {_NO_PYTHON}; exit 127; }}; {python}"
        return [
            "ssh", "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={self.connect_s}",
            "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4",
            *self.options, "--", self.host, f"sh -c {shlex.quote(script)}",
        ]  # fmt: skip


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


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
