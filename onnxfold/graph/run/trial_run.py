"""A trial run of a model in a process with limited memory, for models of unknown size.

The process loads the model in onnxruntime, runs it on arrays, and says how it ended. It imports nothing of this
package, so that it starts in a fraction of a second. Its limit counts what it allocates (RLIMIT_DATA): address space,
of which onnxruntime reserves much more than it uses, would be the wrong thing to count.
"""

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from onnxfold.config.quantities import show_bytes
from onnxfold.errors import MemoryLimitError
from onnxfold.graph.files.save import save
from onnxfold.graph.run import loops
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.machine import memory
from onnxfold.machine.python import python

_OUT_OF_MEMORY = 77
_CHILD = """
import resource, sys
import numpy, onnxruntime
most, model, *inputs = sys.argv[1:]
with open("/proc/self/statm") as file:
    held = int(file.read().split()[5]) * resource.getpagesize()
hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
limit = held + int(most)
resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))
try:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    for path in inputs:
        with numpy.load(path) as feeds:
            session.run(None, dict(feeds))
except MemoryError:
    sys.exit(77)
except Exception as error:
    words = ("allocate", "bad_alloc", "memory")
    sys.exit(77 if any(word in str(error).lower() for word in words) else 1)
"""


def require_trial_run(view: GraphView, batches: Sequence[Mapping[str, Array]], what: str) -> None:
    """Run a model once in a separate process with limited memory."""
    loop = loops.open_loop(view)
    if loop is not None:
        loop.require_end()
    most = memory.limit()
    with tempfile.TemporaryDirectory(prefix="onnxfold-") as folder:
        path = Path(folder) / "model.onnx"
        save(view, path)
        inputs = []
        for i, batch in enumerate(batches):
            inputs.append(Path(folder) / f"{i}.npz")
            np.savez(inputs[-1], **{name: np.asarray(values) for name, values in batch.items()})  # type: ignore[arg-type]
        command = python("-c", _CHILD, str(most), str(path), *map(str, inputs))
        seconds = None if loop is None else loops.MOST_SECONDS * len(batches)
        try:
            code = subprocess.run(command, capture_output=True, check=False, timeout=seconds).returncode
        except subprocess.TimeoutExpired:
            assert loop is not None
            raise loop.too_long() from None
    # onnxruntime ends by a signal where an allocation fails that it does not expect to fail.
    if code == _OUT_OF_MEMORY or code < 0:
        raise MemoryLimitError(f"{what} needs more memory than the limit of {show_bytes(most)}: {memory.SMALLER}")
