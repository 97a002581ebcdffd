"""Prove that a folded model is a model: it loads, runs, and kept its interface."""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from onnxfold.errors import VerificationError
from onnxfold.graph.load import ModelLike, load
from onnxfold.graph.save import PROTOBUF_LIMIT, save, to_model, weight_bytes
from onnxfold.graph.session import Session
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.report import FidelityReport
from onnxfold.statistics.fidelity import fidelity
from onnxfold.statistics.noise import noise_inputs

_SAMPLES = 4


@dataclass(frozen=True)
class VerificationResult:
    """Outcome of a verification; `notes` says what could not be checked."""

    fidelity: FidelityReport | None
    notes: tuple[str, ...] = ()


def verify(original: ModelLike, view: GraphView, *, seed: int = 0) -> VerificationResult:
    """Check a folded model and measure its fidelity on noise.

    The check is structural: onnx's checker with full shape inference accepts the model, onnxruntime loads
    and runs it, names, types and ranks of inputs and outputs are the original's, output shapes agree, and no
    finite output became infinite. How far the values moved is reported, not judged.

    Parameters
    ----------
    original : path or ModelProto
        The model before the fold.
    view : GraphView
        The folded model.
    seed : int
        Seed of the inputs.

    Raises
    ------
    VerificationError
        If a check fails.
    """
    before, after = interface(load(original)), interface(view)
    if before != after:
        raise VerificationError(f"the interface changed: {before} became {after}")
    if weight_bytes(view) > PROTOBUF_LIMIT:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "folded.onnx"
            save(view, path, external_data=True)
            notes = _check(original, str(path))
        # Two sessions would hold both models in memory; the point of streaming is that neither has to be.
        result = VerificationResult(None, ("the model exceeds 2 GB: checked, but not run beside the original",))
    else:
        model = to_model(view)
        notes = _check(original, model)
        result = _compare(original, Session(model), view, seed)
    return replace(result, notes=notes + result.notes)


def interface(view: GraphView) -> list[tuple[str, int, int]]:
    """Return name, element type and rank of every input and output."""
    infos = [i for i in view.graph.input if i.name not in view.weights] + list(view.graph.output)
    return [(i.name, i.type.tensor_type.elem_type, len(i.type.tensor_type.shape.dim)) for i in infos]


def _check(original: ModelLike, model: onnx.ModelProto | str) -> tuple[str, ...]:
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # checker and shape inference raise different types
        text = " ".join(str(error).split())[:400]
        if _rejected(original):
            return (f"onnx.checker rejects the folded model as it does the original: {text}",)
        raise VerificationError(f"onnx.checker rejects the folded model: {text}") from None
    return ()


def _rejected(model: ModelLike) -> bool:
    try:
        onnx.checker.check_model(model if isinstance(model, onnx.ModelProto) else str(model), full_check=True)
    except Exception:
        return True
    return False


def _compare(original: ModelLike, folded: Session, view: GraphView, seed: int) -> VerificationResult:
    try:
        reference = Session(original)
    except VerificationError as error:
        return VerificationResult(None, (f"fidelity was not measured, the original does not load: {error}",))
    try:
        feeds = noise_inputs(reference.inputs, samples=_SAMPLES, seed=seed, shapes=view.input_shapes)
    except MemoryError:
        return VerificationResult(None, ("fidelity was not measured: inputs of this size do not fit into memory",))
    try:
        expected = reference.run(feeds)
    except VerificationError as error:
        note = f"fidelity was not measured, the original does not run on {_shapes(feeds)}: {error}; give --input-shapes"
        return VerificationResult(None, (note,))
    if reference.is_twin != folded.is_twin:
        return VerificationResult(None, ("fidelity was not measured: only one of the models runs in its own type",))
    got = folded.run(feeds)
    for name, a, b in zip(folded.output_names, expected, got, strict=True):
        if a.ndim != b.ndim:
            raise VerificationError(f"output '{name}' had the shape {a.shape} and now has {b.shape}")
        if a.dtype.kind == "f" and np.isfinite(a).all() and not np.isfinite(b).all():
            raise VerificationError(f"output '{name}' is no longer finite")
    same = [i for i, (a, b) in enumerate(zip(expected, got, strict=True)) if a.shape == b.shape]
    notes = tuple(
        f"output '{folded.output_names[i]}' depends on the data for its shape; its values were not compared"
        for i in range(len(got)) if i not in same
    )  # fmt: skip
    report = fidelity(
        [folded.output_names[i] for i in same], [expected[i] for i in same], [got[i] for i in same], inputs="noise"
    )
    return VerificationResult(report, notes)


def _shapes(feeds: dict[str, Array]) -> str:
    return ", ".join(f"{name}:{'x'.join(map(str, v.shape))}" for name, v in feeds.items())
