"""Steps of one architecture in one form: export, inspection, fold, widening and back."""

from __future__ import annotations

import time
import traceback
from collections import defaultdict
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import onnx
import onnxruntime as ort

import onnxfold
from benchmarks.coverage.cases import Case
from benchmarks.coverage.held_back import RECURRENT, general, held_back
from benchmarks.coverage.row import SPARSITY, Row
from onnxfold import api
from onnxfold.budget.costs.weights import count_parameters
from onnxfold.channels.declarations import Role
from onnxfold.graph.files.load import load
from onnxfold.passes.normalize.pipelines import NORMALIZE
from testing.compare import relative_difference
from testing.covered import covered
from testing.widening.axes import Array
from testing.widening.declarations import DeclaredNumbers, normalised
from testing.widening.widen import Widening, in_order

#: A fold at SPARSITY that moves the outputs of a random network less than this shows that they hardly depend on it.
BLIND: Final = 1e-3
#: What can be folded, and what is exact, does not depend on the inputs; many or inverted ones take minutes per file.
SAMPLES: Final = 64


def measure(name: str, form: str, case: Case, folder: Path) -> Row:
    """Do every step for one form; without a file, or without its groups, nothing follows."""
    row = Row(name, form)
    start = time.perf_counter()
    path = folder / f"{name}.{form}.onnx"
    steps = {
        "export": lambda: _export(row, case, path),
        "original": lambda: _check_original(row, case, path),
        "inspect": lambda: _inspect(row, case, path),
        "fold": lambda: _fold(row, case, path),
        "lossless": lambda: _widen(row, case, path),
    }
    for step, action in steps.items():
        try:
            action()
        except Exception as error:
            row.errors[step] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            row.traces[step] = "".join(traceback.format_exception(error)[-4:])[-1500:]
            if step in ("export", "inspect"):
                break
    row.seconds = time.perf_counter() - start
    return row


def _export(row: Row, case: Case, path: Path) -> None:
    note = case.export(path, row.form)
    if note:
        row.notes.append(note)
        row.static_batch = True


def _check_original(row: Row, case: Case, path: Path) -> None:
    """Run the export beside torch: what does not run or differs here is not the fold's doing."""
    checked = case.checked()
    if checked is None:
        run_model(path, case.feeds(path, seed=10))
        return
    feeds, expected = checked
    difference = relative_difference(expected, run_model(path, feeds))
    if difference > 1e-3:
        row.notes.append(f"the export itself differs from torch by {difference:.1e}")


def _inspect(row: Row, case: Case, path: Path) -> None:
    found = api.inspect_model(path)
    row.weights, row.groups = found.share.weights, len(found.groups)
    row.outputs, row.inputs, row.either = found.share.outputs, found.share.inputs, found.share.either
    row.without_words = covered(path, case.words) if case.words else None
    view = load(path)
    NORMALIZE(view)
    parts: dict[tuple[str, Role], float] = defaultdict(float)
    for group in found.groups:
        for m in group.members:
            size = view.weights[m.axis.tensor].shape[m.axis.axis] * m.axis.blocks
            parts[m.axis.tensor, m.role] += m.positions.size / size
    row.held = held_back(view, found, parts)
    unshared = count_parameters(view)
    if unshared > 1.02 * found.parameters:
        row.notes.append(f"normalising makes {unshared:,} weights of {found.parameters:,}: shared ones became several")
    recurrent = [i for n in view.nodes if n.op_type in RECURRENT for i in n.input[1:3]]
    stay = {i for i in recurrent if parts[i, Role.PRODUCER] < 1.0}
    if stay:
        why = dict.fromkeys(general(r.reason) for r in found.refusals if r.weight in stay)
        row.notes.append(f"{len(stay)} of {len(recurrent)} recurrent weights stay: {'; '.join(why)}")


def _fold(row: Row, case: Case, path: Path) -> None:
    result = onnxfold.fold(path, SPARSITY, inputs=case.inputs, samples=SAMPLES, cache=None)
    row.reached = result.report.sparsity
    row.notes += [note for note in result.report.notes if not note.startswith("reached sparsity")]
    if result.report.fidelity is not None:
        row.noise_error = max(o.relative_error for o in result.report.fidelity.outputs)
        if row.noise_error < BLIND:
            row.notes.append(f"the outputs hardly depend on the weights (relative error {row.noise_error:.0e})")
    saved = result.save(path.with_suffix(".folded.onnx"))
    if "original" in row.errors:  # nothing to compare with
        return
    row.valid = False
    feeds = case.feeds(path, seed=11)
    before, after = run_model(path, feeds), run_model(saved, feeds)
    for a, b in zip(before, after, strict=True):
        if a.shape != b.shape:
            raise AssertionError(f"output shape {a.shape} became {b.shape}")
        if not np.isfinite(b).all():
            raise AssertionError("an output is not finite")
    row.valid = True


def _widen(row: Row, case: Case, path: Path) -> None:
    """Double every channel, fold by half, compare with the original; the same with one to three copies of each."""
    if row.groups == 0 or "original" in row.errors:
        return
    feeds = case.feeds(path, seed=12)
    expected = run_model(path, feeds)
    model = normalised(path)
    row.normalised = relative_difference(expected, run_model(model, feeds))
    wide = Widening(model, 0, 2, DeclaredNumbers).apply()
    row.widened = relative_difference(expected, run_model(wide, feeds))
    folded = _exact(wide, case, channel_ratio=0.5)
    row.lossless = relative_difference(expected, run_model(folded, feeds))
    # One to three copies, so that nothing that weighs channels by their number comes out equal by chance.
    widening = Widening(model, 0, None, DeclaredNumbers)
    ratios = in_order(widening.groups, widening.ratios)
    if ratios is None:
        return
    uneven = widening.apply()
    row.widened = max(row.widened, relative_difference(expected, run_model(uneven, feeds)))
    folded = _exact(uneven, case, channel_ratio=0.0, ratios=ratios)
    row.uneven = relative_difference(expected, run_model(folded, feeds))


def _exact(model: onnx.ModelProto, case: Case, **widths: Any) -> onnx.ModelProto:
    return onnxfold.fold(model, **widths, inputs=case.inputs, samples=SAMPLES, cache=None, verify=False).model


def _session(model: Path | onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def run_model(model: Path | onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    return cast(list[Array], _session(model).run(None, feeds))
