"""Export by onnx2tf, run as a separate program from its own environment.

onnx2tf overwrites its input file, so it only ever gets a copy.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto

from onnxfold.errors import ExportError
from onnxfold.export.parity import TFLiteInterpreter
from onnxfold.export.tflite.convert import Port, Ports
from onnxfold.export.tflite.layout import channels_last, plain

#: Where the program is, if it is not on the path.
PROGRAM = "ONNXFOLD_ONNX2TF"

_TIMEOUT_S = 1800
_SUFFIXES = {"float32": "_float32.tflite", "float16": "_float16.tflite"}


def run_onnx2tf(model: ModelProto, target: Path, dtype: str, keep_nchw_inputs: bool) -> Ports:
    """Convert a copy of a model; return the layouts of its inputs and outputs."""
    program = os.environ.get(PROGRAM) or shutil.which("onnx2tf")
    if program is None:
        raise ExportError(
            "onnx2tf is not installed: install it into an environment of its own (Python 3.12 or newer) and put the "
            f"program on the path, or name it in {PROGRAM}"
        )
    if dtype not in _SUFFIXES:
        raise ExportError(f"{dtype} needs the direct writer: use --backend direct")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "model.onnx"
        onnx.save(model, str(source))
        weights = {w.name for w in model.graph.initializer}
        inputs = [i.name for i in model.graph.input if i.name not in weights]
        kept = ["-k", *inputs] if keep_nchw_inputs else []
        out = str(folder / "out")
        _run([program, "-i", str(source), "-o", out, "-tb", "flatbuffer_direct", "-coion", "-osd", "-n", *kept], folder)
        written = folder / "out" / f"model{_SUFFIXES[dtype]}"
        if not written.exists():
            raise ExportError(f"onnx2tf ended without writing a {dtype} file")
        shutil.copyfile(written, target)
    return _ports(model, inputs, target)


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except OSError as error:
        raise ExportError(f"onnx2tf does not start: {error.strerror} ('{command[0]}')") from None
    except subprocess.TimeoutExpired:
        raise ExportError(f"onnx2tf did not finish within {_TIMEOUT_S} s") from None
    if done.returncode != 0:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise ExportError(f"onnx2tf fails: {lines[-1][:300] if lines else f'exit code {done.returncode}'}")


def _ports(model: ModelProto, inputs: list[str], path: Path) -> Ports:
    """Read the layouts off the file's shapes."""
    declared = {i.name: i for i in (*model.graph.input, *model.graph.output)}

    def port(name: str, sizes: tuple[int, ...]) -> Port:
        dims = declared[name].type.tensor_type.shape.dim
        shape = tuple(d.dim_value if d.HasField("dim_value") else None for d in dims)
        if len(sizes) != len(shape):
            raise ExportError(f"onnx2tf gave '{name}' {len(sizes)} axes instead of {len(shape)}")
        for layout in (channels_last(len(shape)), plain(len(shape))):
            if all(shape[p] in (None, size) for p, size in zip(layout.perm, sizes, strict=True)):
                return Port(name, shape, layout)
        raise ExportError(f"onnx2tf gave '{name}' the shape {list(sizes)}: neither ONNX's order nor channels last")

    shapes = TFLiteInterpreter(path).shapes()
    sides = ((inputs, shapes["inputs"]), ([o.name for o in model.graph.output], shapes["outputs"]))
    missing = [n for names, shape_of in sides for n in names if n not in shape_of]
    if missing:
        raise ExportError(f"onnx2tf did not keep the names of {', '.join(missing)}")
    first, second = (tuple(port(n, tuple(np.ravel(shape_of[n]).tolist())) for n in names) for names, shape_of in sides)
    return first, second
