"""Export a model: load -> prepare -> convert -> write a draft -> check it -> move it into place."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from onnx import TensorProto

from onnxfold.config import checks
from onnxfold.config.checks import known_keywords
from onnxfold.errors import ExportError
from onnxfold.export.c_array import write_c_array
from onnxfold.export.fusion import PREPARE
from onnxfold.export.interpreter import TFLiteInterpreter
from onnxfold.export.onnx2tf import run_onnx2tf
from onnxfold.export.output_scale import exciting_inputs, probabilities
from onnxfold.export.parity import TOLERANCE, Parity, check_samples, compare, reference_inputs, run_reference
from onnxfold.export.tflite.convert import Converted, Port, convert
from onnxfold.export.tflite.shapes import fix_inputs
from onnxfold.files import Output, check_outputs, part_folder, replace_by
from onnxfold.graph.load import ModelLike, blames_broken_files, load
from onnxfold.graph.model_files import claims_on
from onnxfold.graph.nodes import node_key
from onnxfold.graph.quantized import is_quantized
from onnxfold.graph.save import to_model
from onnxfold.graph.tensor_types import Shape
from onnxfold.graph.tensors import FLOAT_TYPES
from onnxfold.graph.twin import float32_twin, has_other_floats
from onnxfold.graph.view import GraphView
from onnxfold.inputs.free_sizes import free_sizes

BACKENDS = ("direct", "onnx2tf", "auto")
DTYPES = ("float32", "float16", "int8")
#: Most that rounding weights to 11 bits, or weights and activations to 8, may change outputs by, relative to the
#: largest one: about three times what small networks show (float16 0.0004, int8 0.03), and far below what a wrong
#: calibration does (0.3 and more).
TOLERANCES = {"float32": TOLERANCE, "float16": 2e-3, "int8": 0.1}
#: Samples that ranges of int8 are taken from: the largest values of 64 leave out some of LeNet5's logits.
_CALIBRATION = 256


@dataclass
class ExportReport:
    """The result of an export.

    Attributes
    ----------
    path : str
        The file.
    backend : str
        Which backend wrote it: 'direct' or 'onnx2tf'.
    dtype : str
        Type of the weights.
    size_bytes : int
        Size of the .tflite content.
    operators : dict of str to int
        How many operators of each kind there are; of the direct backend.
    inputs, outputs : dict of str to str
        Layout of every input and output.
    parity : dict
        Result of the parity check, empty if it was not made: interpreter, samples, max_abs_error, max_rel_error, and
        the output with the largest difference and the scale that this is relative to.
    notes : list of str
        What a user should know.
    seconds : float
        Time it took.
    """

    path: str
    backend: str
    dtype: str
    size_bytes: int
    operators: dict[str, int]
    inputs: dict[str, str]
    outputs: dict[str, str]
    parity: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def to_tflite(model: ModelLike, path: str | Path, **options: Any) -> Path:
    """Write a model as a .tflite file; the parameters are those of :func:`export_model`."""
    return Path(export_model(model, path, **options).path)


def to_c_array(model: ModelLike, path: str | Path, **options: Any) -> Path:
    """Write a model as a C array for TensorFlow Lite Micro; the parameters are those of :func:`export_model`."""
    return Path(export_model(model, path, output_format="c-array", **options).path)


@known_keywords
@blames_broken_files
def export_model(
    model: ModelLike,
    path: str | Path,
    *,
    output_format: str = "tflite",
    backend: str = "direct",
    dtype: str = "float32",
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    keep_nchw_inputs: bool = False,
    verify: bool = True,
    seed: int = 0,
) -> ExportReport:
    """Export a model and check that the file computes the same.

    Parameters
    ----------
    model : path or ModelProto
        The model; left untouched.
    path : path
        Target; appears complete and checked, or not at all.
    output_format : {'tflite', 'c-array'}
        A .tflite file, or a C header that holds it.
    backend : {'direct', 'onnx2tf', 'auto'}
        Own writer, onnx2tf in an interpreter of its own, or the second where the first refuses.
    dtype : {'float32', 'float16', 'int8'}
        Type of the stored weights; with 'int8' activations are quantised, too, calibrated on synthetic inputs.
    input_shapes : mapping, optional
        Sizes of inputs to fix. Others that are free get usual ones that the model runs with, and a note; a batch
        stays free where the backend can leave it so, else it is 1.
    keep_nchw_inputs : bool
        Leave the axes of inputs as ONNX has them; else images are channels last.
    verify : bool
        Run the file beside onnxruntime on the same inputs.
    seed : int
        Seed of these inputs.

    Raises
    ------
    ConfigError
        If an option makes no sense, or the target is a file that the export reads.
    ExportError
        If an operator cannot be converted (names node, operator and reason), no interpreter is installed, or the
        outputs differ by more than the tolerance. No file is left behind.
    ModelSaveError
        If the file cannot be written.
    """
    start = time.perf_counter()
    checks.one_of("backend", backend, BACKENDS)
    checks.one_of("dtype", dtype, DTYPES)
    checks.one_of("format", output_format, ("tflite", "c-array"))
    verify, seed = checks.flag("verify", verify), checks.seed(seed)
    keep_nchw_inputs = checks.flag("keep_nchw_inputs", keep_nchw_inputs)
    target = checks.path("path", path)
    check_outputs([Output(target, "the output")], claims_on([model]))
    view = open_model(model, input_shapes)
    free = {name: view.shape(name) for name in view.input_names}
    view.fix_input_shapes(free_sizes(view))
    with part_folder(target) as folder:
        draft = folder / "model.tflite"
        report, ports = _write(view, draft, backend, dtype, keep_nchw_inputs, seed)
        report.path = str(target)
        report.notes += view.notes + _note_on_sizes(view, free)
        if verify:
            parity = _check(view, draft, ports, seed)
            report.parity = asdict(parity)
            if not parity.output:
                report.notes.append("no output is finite on the synthetic inputs: nothing was compared")
            _judge(parity, dtype)
        if output_format == "c-array":
            write_c_array(draft, folder / "model.h", name=target.stem)
            draft = folder / "model.h"
        replace_by(target, draft)
    report.seconds = time.perf_counter() - start
    return report


def open_model(model: ModelLike, input_shapes: Mapping[str, Sequence[int]] | None = None) -> GraphView:
    """Load a model with its inputs fixed, in float32: a model in other floats as its float32 twin."""
    view = load(model, input_shapes)
    if view.input_shapes:
        fix_inputs(view, view.input_shapes)
    others = FLOAT_TYPES - {TensorProto.FLOAT}
    if has_other_floats(view.model) or any(view.weight_type(n) in others for n in view.weights):
        notes, view = view.notes, load(float32_twin(to_model(view)))
        view.notes += notes
    return view


def _write(
    view: GraphView, draft: Path, backend: str, dtype: str, keep_nchw_inputs: bool, seed: int
) -> tuple[ExportReport, tuple[tuple[Port, ...], tuple[Port, ...]]]:
    if backend != "onnx2tf":
        try:
            return _write_direct(view, draft, dtype, keep_nchw_inputs, seed)
        except ExportError as error:
            if backend != "auto":
                raise
            try:
                ports = run_onnx2tf(to_model(view), draft, dtype, keep_nchw_inputs)
            except ExportError as second:
                raise ExportError(
                    f"neither backend can export the model: direct: {error.where_and_why}; onnx2tf: {second.reason}"
                ) from None
            note = f"written by onnx2tf, because the direct writer refused: {error.where_and_why}"
            return _report(draft, "onnx2tf", dtype, {}, ports, [note]), ports
    ports = run_onnx2tf(to_model(view), draft, dtype, keep_nchw_inputs)
    return _report(draft, "onnx2tf", dtype, {}, ports, []), ports


def _write_direct(
    view: GraphView, draft: Path, dtype: str, keep_nchw_inputs: bool, seed: int
) -> tuple[ExportReport, tuple[tuple[Port, ...], tuple[Port, ...]]]:
    _require_floats(view)
    converted = _converted(view, keep_nchw_inputs)
    ports = (converted.inputs, converted.outputs)
    _store(converted, draft, dtype, view, seed)
    notes = []
    if dtype == "int8":
        for name, (scale, zero) in TFLiteInterpreter(draft).quantisation().items():
            notes.append(f"'{name}' is int8: value = {scale:.6g} (stored - {zero})")
    return _report(draft, "direct", dtype, converted.operators, ports, notes), ports


def _converted(view: GraphView, keep_nchw_inputs: bool) -> Converted:
    """Convert a model; one that is refused with a free batch, such as for what it computes of it, with a batch of 1."""
    try:
        return _prepared_and_converted(view, keep_nchw_inputs)
    except ExportError:
        first = {name: (1, *shape[1:]) for name in view.input_names if (shape := view.shape(name)) and shape[0] is None}
        if not first:
            raise
        fixed = view.copy()
        fixed.fix_input_shapes(first)
        converted = _prepared_and_converted(fixed, keep_nchw_inputs)
        view.fix_input_shapes(first)
        return converted


def _prepared_and_converted(view: GraphView, keep_nchw_inputs: bool) -> Converted:
    prepared = view.copy()
    PREPARE(prepared)
    return convert(prepared, keep_nchw_inputs=keep_nchw_inputs)


def _note_on_sizes(view: GraphView, before: Mapping[str, Shape | None]) -> list[str]:
    """Return what to say of the sizes of inputs that were free, and were written into the model."""
    after = {name: view.shape(name) or () for name in view.input_names}
    fixed = (f"{n}:{','.join('?' if d is None else str(d) for d in s)}" for n, s in after.items() if s != before[n])
    sizes = " ".join(fixed)
    return [f"sizes that are free in the model are fixed to {sizes}: --input-shapes sets others"] if sizes else []


def _require_floats(view: GraphView) -> None:
    done = next(filter(is_quantized, view.nodes), None)
    if done is not None:
        raise ExportError(
            "the model is quantised, and the direct writer quantises by itself: export the float32 model with --dtype "
            "int8",
            node=done.name or node_key(done), op_type=done.op_type,
        )  # fmt: skip


def _store(converted: Converted, draft: Path, dtype: str, view: GraphView, seed: int) -> None:
    from onnxfold.export.quantize import quantize_int8
    from onnxfold.export.tflite.half import store_as_float16

    if dtype == "float16":
        store_as_float16(converted.graph)
    draft.write_bytes(converted.to_bytes(view.graph.name))
    if dtype == "int8":
        quantize_int8(draft, reference_inputs(view, samples=_CALIBRATION, seed=seed + 1), converted.inputs)


def _report(
    draft: Path,
    backend: str,
    dtype: str,
    operators: dict[str, int],
    ports: tuple[tuple[Port, ...], tuple[Port, ...]],
    notes: list[str],
) -> ExportReport:
    inputs, outputs = ({p.name: p.layout.name() for p in side} for side in ports)
    return ExportReport("", backend, dtype, draft.stat().st_size, operators, inputs, outputs, notes=notes)


def _check(view: GraphView, draft: Path, ports: tuple[tuple[Port, ...], tuple[Port, ...]], seed: int) -> Parity:
    batches = reference_inputs(view, samples=check_samples(view), seed=seed)
    outputs, bounded = run_reference(view, batches), probabilities(view)
    more, found = exciting_inputs(bounded, batches, outputs, lambda feeds: run_reference(view, feeds))
    return compare(draft, [*batches, *more], [*outputs, *found], *ports, bounded)


def _judge(parity: Parity, dtype: str) -> None:
    if not parity.max_rel_error <= TOLERANCES[dtype]:
        raise ExportError(
            f"the export's outputs differ from the ONNX model's: '{parity.output}' by {parity.max_rel_error:.2g} of "
            f"{parity.scale} ({parity.interpreter}, tolerance {TOLERANCES[dtype]:g}); nothing was written; "
            "--no-verify skips this check"
        )
