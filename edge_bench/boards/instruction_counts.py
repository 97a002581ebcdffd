"""Instructions per operator of the generated C on a Cortex-M4F, counted in emulation."""

import json
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

from onnxfold.edge_bench.boards.dut_job import load_input
from onnxfold.edge_bench.boards.emulator import INSTRUCTIONS_PER_TICK, emulate_firmware
from onnxfold.edge_bench.boards.qemu_build import build, project_of
from onnxfold.edge_bench.runners.runner import BenchJob
from onnxfold.export.firmware.project import memory_ld
from onnxfold.graph.files.load import load

#: Memory of the emulated board: models that fit no real one are counted, too.
_FLASH_BYTES = _RAM_BYTES = 4 << 20
_WEIGHTS_BYTES = 16 << 20


def count_by_op(job: BenchJob, *, optimisation: str = "-O2", timeout_s: float = 300.0) -> dict[str, int]:
    """Return instructions per inference by operator; they add up to all of an inference.

    Every operator is a function of its own, and counted to 40 instructions, a tick of the emulated clock.
    """
    kept = job.work / f"instructions{optimisation}.json"
    if not kept.is_file():  # every device's estimate asks for the same counts
        kept.write_text(json.dumps(_count(job, optimisation, timeout_s)))
    counts: dict[str, int] = json.loads(kept.read_text())
    return counts


def _count(job: BenchJob, optimisation: str, timeout_s: float) -> dict[str, int]:
    with tempfile.TemporaryDirectory(dir=job.work, prefix="count-") as folder:
        memory = memory_ld(_FLASH_BYTES, _RAM_BYTES, weights_bytes=_WEIGHTS_BYTES)
        project = project_of(job, Path(folder) / "firmware", memory)
        firmware = build(Path(project.path), optimisation=optimisation, defines="-DMODEL_OP_TICKS")
        with emulate_firmware(firmware.elf) as dut:
            load_input(dut, [np.asarray(job.inputs[0][n]) for n in load(job.onnx).input_names], dut.signature())
            total = dut.infer(1, 0, timeout_s).ticks or 0
            ticks_of: Counter[str] = Counter()
            for operator, ticks in dut.operators():
                ticks_of[operator] += ticks
    counts = {operator: ticks * INSTRUCTIONS_PER_TICK for operator, ticks in ticks_of.items()}
    return {**counts, "other": max(0, total * INSTRUCTIONS_PER_TICK - sum(counts.values()))}
