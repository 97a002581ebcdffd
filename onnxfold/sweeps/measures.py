"""Measured values of a folded model, apart from latency, which is measured where nothing else runs."""

from collections.abc import Mapping
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any

from onnxfold.budget.costs.memory import count_flash, count_ram
from onnxfold.config.pixels import RGB, PixelScale, pixel_scale
from onnxfold.fidelity.comparison import MOST_IMAGES
from onnxfold.fidelity.measures import accuracy, fidelity
from onnxfold.folders import model_file
from onnxfold.folding.fold_result import FoldResult
from onnxfold.graph.files.load import load
from onnxfold.graph.run.session import Session, sample_count
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.inputs.given_inputs import UserSamples, checked_labels
from onnxfold.inputs.given_samples import given_samples
from onnxfold.inputs.tokens.interface import token_interface
from onnxfold.report import FidelityReport


def closeness(report: FidelityReport | None) -> dict[str, Any]:
    """Return how close the folded model is, as columns; of several outputs, the worst counts."""
    if report is None:
        return {}
    errors = [o.relative_error for o in report.outputs if isfinite(o.relative_error)]
    columns: dict[str, Any] = {"relative_error": max(errors, default=None), "agreement_on": report.inputs}
    classes = [o for o in report.outputs if o.top1_agreement is not None]
    if classes:
        lowest = min(classes, key=lambda output: output.top1_agreement or 0.0)
        low, high = lowest.top1_interval or (None, None)
        columns |= {
            "agreement": lowest.top1_agreement, "agreement_low": low, "agreement_high": high,
            "agreement_samples": lowest.top1_samples,
        }  # fmt: skip
    return columns


@lru_cache(maxsize=2)
def _reference(original: Path, data: Path, scale: PixelScale | None) -> tuple[GraphView, UserSamples, list[Array]]:
    """Run the original once, for all folds of it that this process measures; return it, the samples and its answers."""
    model = model_file(original)
    view = load(model)
    session, interface = Session(model, counted=view), token_interface(view)
    samples = given_samples(session.inputs, data, scale, most=MOST_IMAGES, interface=interface)
    if samples.labels is not None:
        samples = UserSamples(samples.arrays, checked_labels(samples.labels, sample_count(samples.arrays)))
    return view, samples, session.run_in_batches(samples.arrays)


def data_columns(result: FoldResult, original: Path, data: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return agreement, and with labels accuracy, on given samples, as columns."""
    scale = pixel_scale(options.get("mean"), options.get("std"), options.get("channels", RGB))
    view, samples, answers = _reference(original, data, scale)
    session = Session(result.view)
    outputs, count = session.run_in_batches(samples.arrays), sample_count(samples.arrays)
    columns = closeness(fidelity(session.output_names, answers, outputs, inputs="data", view=view, samples=count))
    if samples.labels is not None:
        columns["accuracy_before"] = accuracy(answers, samples.labels)
        columns["accuracy"] = accuracy(outputs, samples.labels)
    return columns


def all_measures(result: FoldResult, original: Path, data: Path | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return every column with a measure of a fold."""
    report, before = result.report, load(model_file(original), options.get("input_shapes") or {})
    columns = closeness(report.fidelity)
    if report.estimate is not None:
        low, high = report.estimate.interval
        columns |= {
            "estimated_agreement": report.estimate.agreement,
            "estimated_agreement_low": low, "estimated_agreement_high": high,
        }  # fmt: skip
    if data is not None:
        columns |= data_columns(result, original, data, options)
    inputs = None if report.inputs is None else f"{report.inputs.samples} samples of {report.inputs.kind}"
    notes = "; ".join(report.notes) or None
    return columns | {
        "sparsity": report.sparsity,
        "weights_before": report.before.parameters, "weights": report.after.parameters,
        "macs_before": report.before.macs, "macs": report.after.macs,
        "size_bytes_before": report.before.size_bytes, "size_bytes": report.after.size_bytes,
        "ram_before": count_ram(before), "ram": count_ram(result.view),
        "flash_before": count_flash(before), "flash": count_flash(result.view),
        "cluster": report.cluster, "repair": report.repair, "inputs": inputs, "notes": notes,
        "verdict": str(report.verdict), "warning": report.warning or None, "seconds": report.seconds,
    }  # fmt: skip
