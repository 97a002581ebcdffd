"""Seconds of every kernel of a model, from onnxruntime's profile.

onnxruntime changes a graph before it runs it, and times what it then has: *kernels*. The changed graph is read beside
the profile, so that a kernel is known by its tensors, too.
"""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import ModelProto

from onnxfold.errors import VerificationError
from onnxfold.graph.run.runtime import session_options
from onnxfold.graph.run.session import Feeds, one_line

_EVENT = "_kernel_time"


@dataclass(frozen=True, eq=False)
class Kernel:
    """One kernel."""

    name: str  # what onnxruntime calls it, and its operator
    op_type: str
    inputs: tuple[str, ...]  # its tensors, if the changed graph tells them
    outputs: tuple[str, ...]
    seconds: npt.NDArray[np.float64]

    @property
    def typical(self) -> float:
        """The mean of the faster third of the seconds: waits count, too, as do whole microseconds."""
        return float(np.mean(np.sort(self.seconds)[: -(-len(self.seconds) // 3)]))


def profile_kernels(model: ModelProto, feeds: Feeds, *, threads: int, runs: int, warm_up: int = 2) -> list[Kernel]:
    """Return the kernels of a model in the order of their run, without those inside bodies of control flow."""
    with tempfile.TemporaryDirectory() as folder:
        options = session_options(ort.GraphOptimizationLevel.ORT_ENABLE_ALL, threads)
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        changed = Path(folder) / "changed.onnx"
        options.optimized_model_filepath = str(changed)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights")
        options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
        try:
            session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
            for _ in range(warm_up + runs):
                session.run(None, dict(feeds))
        except Exception as error:  # onnxruntime's exception classes are not public
            raise VerificationError(f"onnxruntime does not run the model: {one_line(error)}") from None
        events = json.loads(Path(session.end_profiling()).read_text())
        nodes = {node.name: node for node in onnx.load(str(changed), load_external_data=False).graph.node}
    times: dict[str, list[float]] = {}
    for event in events:
        name = event["name"].removesuffix(_EVENT)
        if event.get("cat") == "Node" and event["name"] != name and name in nodes:
            times.setdefault(name, []).append(event["dur"] * 1e-6)
    per_run = ((nodes[name], _per_run(np.array(seconds), warm_up + runs)) for name, seconds in times.items())
    return [
        Kernel(node.name, node.op_type, tuple(node.input), tuple(node.output), seconds[warm_up:])
        for node, seconds in per_run
    ]


def _per_run(seconds: npt.NDArray[np.float64], runs: int) -> npt.NDArray[np.float64]:
    """Return the seconds of every run, of kernels of one name together."""
    count = len(seconds) // runs
    if count * runs != len(seconds):  # of a body that runs differently often
        return np.full(runs, float(np.sum(seconds)) / runs)
    summed: npt.NDArray[np.float64] = seconds.reshape(runs, count).sum(axis=1)
    return summed
