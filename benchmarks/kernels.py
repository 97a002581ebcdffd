"""OpenBLAS kernels that this machine can run, each once."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

#: One x86-64 kernel of every kind: SSE, AVX2, AMD's, AVX-512.
CORETYPES = ("Nehalem", "Haswell", "Zen", "SkylakeX")

_PROBE_SECONDS = 120
_PROBE = """
import json
import numpy, scipy.linalg, threadpoolctl
a = numpy.random.default_rng(0).standard_normal((300, 300))
scipy.linalg.cho_factor(a @ a.T + numpy.eye(300))
found = [i for i in threadpoolctl.threadpool_info() if i["user_api"] == "blas"]
architectures = sorted({i.get("architecture", i["internal_api"]) for i in found})
print(json.dumps([architectures, sorted({i["num_threads"] for i in found})]))
"""


@dataclass(frozen=True)
class Probe:
    """What a child process reports about its BLAS.

    Parameters
    ----------
    architecture : str
        The kernel that threadpoolctl names; '' where the child died.
    threads : str
        Number of threads.
    """

    architecture: str
    threads: str = ""

    def __str__(self) -> str:
        return f"{self.architecture}, {self.threads} threads" if self.architecture else "dies on this machine"


def probe(environment: Mapping[str, str] | None = None) -> Probe:
    """Multiply matrices in a child process and return which kernel did it: a wrong one ends in SIGILL.

    Parameters
    ----------
    environment : mapping of str to str, optional
        Variables to set.
    """
    merged = {**os.environ, **(environment or {})}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE],
            env=merged,
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Probe("")
    if done.returncode:
        return Probe("")
    architectures, threads = json.loads(done.stdout)
    return Probe("+".join(architectures), "+".join(map(str, threads)))


def distinct_kernels(coretypes: Iterable[str]) -> Iterator[tuple[str, Probe, str]]:
    """Yield every coretype, what it probes as, and why it is to be skipped, '' if it is not."""
    seen: dict[str, str] = {}
    for coretype in coretypes:
        found = probe({"OPENBLAS_CORETYPE": coretype})
        reason = ""
        if not found.architecture:
            reason = "dies on this machine"
        elif found.architecture in seen:
            reason = f"the same kernel as {seen[found.architecture]}"
        seen.setdefault(found.architecture, coretype)
        yield coretype, found, reason
