"""The draft of an export: written by one of the two backends, and quantised."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import onnx

from onnxfold.errors import ExportError
from onnxfold.export import parity
from onnxfold.export.fusion import PREPARE
from onnxfold.export.tflite.convert import Converted, Ports, convert
from onnxfold.export.tflite.graph import store_as_float16
from onnxfold.export.tflite.layout import Layout, channels_last, plain
from onnxfold.graph.files.save import to_model
from onnxfold.graph.nodes import is_quantized, node_key
from onnxfold.graph.tensors import Array, Shape
from onnxfold.graph.view import GraphView
from onnxfold.inputs.given_samples import Given

Arrays = dict[str, Array]

#: Least signal-to-noise ratio of every output of an int8 file, in decibels: a noise of a tenth of the signal.
LEAST_SNR = 20.0
#: More of it that is wanted on held-out inputs: a few samples make most of the noise, and others decide.
_MARGIN = 3.0
#: Samples that ranges of int8 are taken from: the largest values of 64 leave out some of LeNet5's logits.
MOST_CALIBRATION = 256


@dataclass
class ExportedFile:
    """A file in TFLite's format."""

    path: str
    backend: str  # which backend wrote it: 'direct' or 'onnx2tf'
    dtype: str  # type of the weights
    size_bytes: int  # size of the .tflite content
    operators: dict[str, int]  # how many operators of each kind there are; of the direct backend
    inputs: dict[str, str]  # layout of every input and output
    outputs: dict[str, str]


@dataclass
class ExportReport(ExportedFile):
    """The result of an export: the file, and what is known of it."""

    #: The fields of :class:`onnxfold.export.parity.Parity`; empty where the file was not checked.
    parity: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # what a user should know
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


class SampleOptions(TypedDict, total=False):
    """Options of the samples that an export takes, by name."""

    calibration: Given | None
    data: Given | None
    mean: float | Sequence[float] | None
    std: float | Sequence[float] | None
    channels: str
    force: bool


class ExportOptions(SampleOptions, total=False):
    """Options of an export by name."""

    output_format: str
    backend: str
    dtype: str
    input_shapes: Mapping[str, Sequence[int]] | None
    keep_nchw_inputs: bool
    verify: bool
    seed: int


def write_draft(
    view: GraphView, draft: Path, options: ExportOptions, calibration: Arrays | None
) -> tuple[ExportReport, Ports]:
    """Write a file in TFLite's format, by the writer of this package or by onnx2tf; return what is known of it."""
    backend, dtype, keep_nchw = options["backend"], options["dtype"], options["keep_nchw_inputs"]
    note = ""
    if backend != "onnx2tf":
        try:
            _require_floats(view)
            converted = _convert(view, keep_nchw)
            if dtype == "float16":
                store_as_float16(converted.graph)
            draft.write_bytes(converted.to_bytes(view.graph.name))
            notes = _quantise(converted, draft, view, options["seed"], calibration) if dtype == "int8" else []
            return _report(draft, "direct", dtype, converted.ports, notes, converted.operators), converted.ports
        except ExportError as error:
            if backend != "auto":
                raise
            note = error.where_and_why
    try:
        ports = run_onnx2tf(view, draft, dtype, keep_nchw)
    except ExportError as second:
        if not note:
            raise
        raise ExportError(f"neither backend can export the model: direct: {note}; onnx2tf: {second.reason}") from None
    notes = [f"written by onnx2tf, because the direct writer refused: {note}"] if note else []
    return _report(draft, "onnx2tf", dtype, ports, notes, {}), ports


def _convert(view: GraphView, keep_nchw_inputs: bool) -> Converted:
    """Convert a model; one that is refused with a free batch, such as for what it computes of it, with a batch of 1."""
    try:
        return _prepare_and_convert(view, keep_nchw_inputs)
    except ExportError:
        first = {name: (1, *shape[1:]) for name in view.input_names if (shape := view.shape(name)) and shape[0] is None}
        if not first:
            raise
        fixed = view.copy()
        fixed.fix_input_shapes(first)
        converted = _prepare_and_convert(fixed, keep_nchw_inputs)
        view.fix_input_shapes(first)
        return converted


def _prepare_and_convert(view: GraphView, keep_nchw_inputs: bool) -> Converted:
    prepared = view.copy()
    PREPARE(prepared)
    return convert(prepared, keep_nchw_inputs=keep_nchw_inputs)


def _require_floats(view: GraphView) -> None:
    done = next(filter(is_quantized, view.nodes), None)
    if done is not None:
        raise ExportError(
            "the model is quantised, and the direct writer quantises by itself: export it, or the float32 model, with "
            "--dtype int8",
            node=done.name or node_key(done), op_type=done.op_type,
        )  # fmt: skip


def _quantise(converted: Converted, draft: Path, view: GraphView, seed: int, calibration: Arrays | None) -> list[str]:
    from onnxfold.export.quantize import HeldOut, quantize_int8

    most, few = parity.check_samples(view, MOST_CALIBRATION), 2 * parity.check_samples(view)
    if calibration is None:
        batches, held = (parity.reference_inputs(view, samples=n, seed=seed + i) for i, n in ((1, most), (2, few)))
    else:
        parts = parity.set_apart(view, calibration)
        batches, held = (parity.user_batches(view, part, n) for part, n in zip(parts, (most, few), strict=True))
    held_out = HeldOut(held, parity.run_reference(view, held))
    stays = quantize_int8(converted, draft, batches, held_out, LEAST_SNR + _MARGIN)
    ports = parity.TFLiteInterpreter(draft).quantisation().items()
    return [*(f"'{name}' is int8: value = {scale:.6g} (stored - {zero})" for name, (scale, zero) in ports), *stays]


def _report(
    draft: Path, backend: str, dtype: str, ports: Ports, notes: list[str], operators: dict[str, int]
) -> ExportReport:
    inputs, outputs = ({name: layout.name() for name, layout in side.items()} for side in ports)
    return ExportReport("", backend, dtype, draft.stat().st_size, operators, inputs, outputs, notes=notes)


_BYTES_PER_LINE = 12
_ALIGNMENT = 16


def c_identifier(name: str) -> str:
    """Return a valid C identifier made from any name."""
    identifier = re.sub(r"\W", "_", name, flags=re.ASCII) or "model"
    return f"_{identifier}" if identifier[0].isdigit() else identifier


def write_c_array(source: Path, header: Path, *, name: str) -> None:
    """Write a header with ``const unsigned char NAME[]``, aligned to 16 bytes, and ``const unsigned int NAME_len``."""
    identifier = c_identifier(name)
    guard = f"{identifier.upper()}_H_"
    size = source.stat().st_size
    with source.open("rb") as data, header.open("w", encoding="ascii", newline="\n") as out:
        out.write(
            f"#ifndef {guard}\n#define {guard}\n\n#if defined(__cplusplus)\n"
            f"#define {guard}ALIGN alignas({_ALIGNMENT})\n#else\n"
            f"#define {guard}ALIGN __attribute__((aligned({_ALIGNMENT})))\n#endif\n\n"
            f"{guard}ALIGN static const unsigned char {identifier}[] = {{\n"
        )
        while line := data.read(_BYTES_PER_LINE):
            out.write(f"  {', '.join(f'0x{b:02x}' for b in line)},\n")
        out.write(f"}};\nstatic const unsigned int {identifier}_len = {size};\n\n#endif  // {guard}\n")


#: Where the program is, if it is not on the path.
PROGRAM = "ONNXFOLD_ONNX2TF"

_TIMEOUT_S = 1800
_SUFFIXES = {"float32": "_float32.tflite", "float16": "_float16.tflite"}


def run_onnx2tf(view: GraphView, target: Path, dtype: str, keep_nchw_inputs: bool) -> Ports:
    """Convert a copy of a model, in an environment of its own; return the layouts of its inputs and outputs."""
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
        onnx.save(to_model(view), str(source))  # onnx2tf overwrites its input
        kept = ["-k", *view.input_names] if keep_nchw_inputs else []
        out = str(folder / "out")
        _run([program, "-i", str(source), "-o", out, "-tb", "flatbuffer_direct", "-coion", "-osd", "-n", *kept], folder)
        written = folder / "out" / f"model{_SUFFIXES[dtype]}"
        if not written.exists():
            raise ExportError(f"onnx2tf ended without writing a {dtype} file")
        shutil.copyfile(written, target)
    return _ports(view, target)


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


def _ports(view: GraphView, path: Path) -> Ports:
    """Read the layouts off the file's shapes."""
    shapes = parity.TFLiteInterpreter(path).shapes()
    sides = ((view.input_names, shapes["inputs"]), (view.output_names, shapes["outputs"]))
    missing = [n for names, sizes in sides for n in names if n not in sizes]
    if missing:
        raise ExportError(f"onnx2tf did not keep the names of {', '.join(missing)}")
    return Ports(
        *({name: _layout(name, view.shape(name) or (), sizes[name]) for name in names} for names, sizes in sides)
    )


def _layout(name: str, shape: Shape, sizes: tuple[int, ...]) -> Layout:
    if len(sizes) != len(shape):
        raise ExportError(f"onnx2tf gave '{name}' {len(sizes)} axes instead of {len(shape)}")
    for layout in (channels_last(len(shape)), plain(len(shape))):
        if all(shape[p] in (None, size) for p, size in zip(layout.perm, sizes, strict=True)):
            return layout
    raise ExportError(f"onnx2tf gave '{name}' the shape {list(sizes)}: neither ONNX's order nor channels last")
