"""Reports of a fold and of a comparison, as plain values."""

from onnxfold.report.closeness import Fidelity, FidelityReport, Verdict
from onnxfold.report.fold_report import AccuracyRecord, FoldReport, PassRecord, QuantizationRecord, Refusal, RefusalKind
from onnxfold.report.records import LatencyRecord, ModelSize, RefinementRecord, milliseconds

__all__ = [
    "AccuracyRecord", "Fidelity", "FidelityReport", "FoldReport", "LatencyRecord", "ModelSize", "PassRecord",
    "QuantizationRecord", "RefinementRecord", "Refusal", "RefusalKind", "Verdict", "milliseconds",
]  # fmt: skip
