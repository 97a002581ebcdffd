"""Prove that a folded model is a model: it loads, runs, and kept its interface."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from onnxfold.errors import VerificationError
from onnxfold.graph.load import ModelLike
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
    if weight_bytes(view) > PROTOBUF_LIMIT:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "folded.onnx"
            save(view, path, external_data=True)
            _check(str(path))
            return _compare(original, Session(path), view, seed)
    model = to_model(view)
    _check(model)
    return _compare(original, Session(model), view, seed)


def _check(model: onnx.ModelProto | str) -> None:
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # checker and shape inference raise different types
        text = " ".join(str(error).split())
        raise VerificationError(f"onnx.checker rejects the folded model: {text[:400]}") from None


def _compare(original: ModelLike, folded: Session, view: GraphView, seed: int) -> VerificationResult:
    try:
        reference = Session(original)
    except VerificationError as error:
        return VerificationResult(None, (f"fidelity was not measured, the original does not load: {error}",))
    if reference.interface != folded.interface:
        raise VerificationError(f"the interface changed: {reference.interface} became {folded.interface}")
    feeds = noise_inputs(reference.inputs, samples=_SAMPLES, seed=seed, shapes=view.input_shapes)
    try:
        expected = reference.run(feeds)
    except VerificationError as error:
        note = f"fidelity was not measured, the original does not run on {_shapes(feeds)}: {error}; give --input-shapes"
        return VerificationResult(None, (note,))
    got = folded.run(feeds)
    for name, a, b in zip(folded.output_names, expected, got, strict=True):
        if a.dtype != b.dtype or a.ndim != b.ndim:
            raise VerificationError(f"output '{name}' was {a.dtype} {a.shape} and is now {b.dtype} {b.shape}")
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
