"""The report of a fold, written once, when everything is known."""

from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from onnxfold._version import __version__
from onnxfold.config import FoldConfig
from onnxfold.fidelity.estimate import estimate_agreement
from onnxfold.fidelity.verify import VerificationResult
from onnxfold.folding.fold_model import FoldedModel
from onnxfold.folding.merge_map import merge_maps
from onnxfold.folding.methods import Method
from onnxfold.folding.open_model import OpenedModel
from onnxfold.folding.scopes import all_refusals
from onnxfold.folding.written_model import WrittenModel
from onnxfold.report import AccuracyRecord, DroppedBlock, FoldReport, InputRecord, joined


def write_report(
    opened: OpenedModel,
    folded: FoldedModel,
    written: WrittenModel,
    config: FoldConfig,
    method: Method,
    verified: VerificationResult,
    notes: Sequence[str],
    seconds: float,
    *,
    accuracy: AccuracyRecord | None = None,
    dropped: Sequence[DroppedBlock] = (),
) -> FoldReport:
    """Return the report of a fold.

    Parameters
    ----------
    opened : OpenedModel
        The model as it was loaded and analysed.
    folded : FoldedModel
        What was done to it.
    written : WrittenModel
        The result, in the types in which it is written.
    config : FoldConfig
        The request, in the form that gives the same result at any speed of the machine.
    method : Method
        The requested method.
    verified : VerificationResult
        What the check of the result found.
    notes : sequence of str
        What was noted about inputs and search.
    seconds : float
        How long it took.
    accuracy : AccuracyRecord, optional
        The accuracies that decided how far the fold goes.
    dropped : sequence of DroppedBlock, optional
        Blocks that went before the fold.
    """
    request, inputs = folded.request, written.inputs
    diagnostics = joined([graph.diagnostics for graph in folded.graphs])
    kind = "" if inputs is None else inputs.kind
    report = FoldReport(
        method=config.method,
        allocation=config.allocation,
        requested=config.request + (f", sparsity {request.sparsity:g} by default" if request.by_default else ""),
        before=folded.before,
        after=written.size,
        groups=[record for graph in folded.graphs for record in graph.groups],
        refusals=all_refusals(opened.scopes),
        passes=[record for graph in folded.graphs for record in graph.passes],
        cluster=method.cluster,
        repair=method.repair,
        inputs=None if inputs is None else InputRecord(inputs.kind, inputs.samples, inputs.reason, inputs.steps),
        quantization=written.quantization,
        fidelity=verified.fidelity,
        accuracy=accuracy,
        estimate=estimate_agreement(verified.fidelity, verified.fitted, kind, diagnostics),
        latency=verified.latency,
        latency_table=config.latency_table if isinstance(config.latency_table, dict) else None,
        config=config.to_dict(),
        seconds=seconds,
        version=__version__,
        model=str(opened.source) if isinstance(opened.source, str | Path) else "",
        versions={name: metadata.version(name) for name in ("numpy", "onnx", "onnxruntime")},
        merge_map=merge_maps(folded.graphs),
        diagnostics=diagnostics,
        dropped=list(dropped),
        tuning=folded.tuning,
    )
    report.notes = [
        *request.notes(folded.widths, report.sparsity), *report.fallbacks, *opened.view.notes, *notes, *written.notes,
        *verified.notes,
    ]  # fmt: skip
    return report
