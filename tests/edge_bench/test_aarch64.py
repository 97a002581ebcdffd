"""The generated C as AArch64, which is what a Jetson Nano is: built by a cross-compiler, run under qemu-user."""

import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from onnxfold.edge_bench.job import relative_error
from tests.edge_bench.jobs import small_job

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
SOURCES = ("model_generated.c", "model_generated_data.c", "model_tensors.c")
# One inference: raw input on the standard input, raw output on the standard output.
MAIN = """
#include <stdio.h>

#include "model_run.h"

int main(void) {
    if (fread(model_input, 1, MODEL_INPUT_BYTES, stdin) != MODEL_INPUT_BYTES) return 2;
    if (model_init() || model_invoke()) return 3;
    return fwrite(model_output, 1, MODEL_OUTPUT_BYTES, stdout) != MODEL_OUTPUT_BYTES;
}
"""


@pytest.mark.skipif(
    shutil.which(COMPILER) is None or shutil.which(EMULATOR) is None or find_spec("emx_onnx_cgen") is None,
    reason="apt install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user; pip install 'onnxfold[firmware]'",
)
def test_generated_c_computes_the_same_on_aarch64(tmp_path: Path) -> None:
    from onnxfold.export.firmware.project import write_project

    job = small_job(tmp_path)
    source = Path(write_project(job.onnx, tmp_path / "project", "qemu").path) / "src"
    (tmp_path / "main.c").write_text(MAIN)
    program = tmp_path / "model"
    flags = ["-O2", "-std=c99", "-Wall", "-static", f"-I{source}"]
    files = [str(tmp_path / "main.c"), *(str(source / name) for name in SOURCES)]
    subprocess.run([COMPILER, *flags, *files, "-lm", "-o", str(program)], check=True)
    assert "ARM aarch64" in _description(program)
    outputs = []
    for feeds in job.inputs:
        done = subprocess.run(
            [EMULATOR, str(program)], input=feeds["x"].tobytes(), capture_output=True, check=True, timeout=300
        )
        outputs.append([np.frombuffer(done.stdout, "<f4")])
    assert relative_error(job.reference, outputs) <= 1e-5
    # The inputs differ, and so do the outputs: nothing constant was compared.
    assert not np.array_equal(outputs[0][0], outputs[1][0])


def _description(program: Path) -> str:
    """Return the machine of an ELF file."""
    machine = int.from_bytes(program.read_bytes()[18:20], "little")
    return "ARM aarch64" if machine == 0xB7 else f"machine {machine:#x}"
