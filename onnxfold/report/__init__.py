"""Reports of a fold and of a comparison, as plain values."""

from onnxfold.report.closeness import (
    DAMAGED,
    DESTROYED,
    KEPT,
    NOT_KNOWN,
    AgreementEstimate,
    Fidelity,
    FidelityReport,
    LabelFlips,
    MergeRecord,
    NetworkShare,
    PerplexityRecord,
    Signs,
    Verdict,
)
from onnxfold.report.comparison import THRESHOLDS, ComparisonReport, check_thresholds, failures_of
from onnxfold.report.fold_report import (
    ONLY_DUPLICATES,
    AccuracyRecord,
    FoldReport,
    GroupRecord,
    InputRecord,
    PassRecord,
    QuantizationRecord,
    Refusal,
    RefusalKind,
)
from onnxfold.report.records import (
    CORRELATION_BINS,
    CorrelationHistogram,
    Diagnostics,
    DroppedBlock,
    ErrorCurve,
    LatencyRecord,
    MergeMap,
    ModelSize,
    RefinementRecord,
    VarianceRatio,
    join_diagnostics,
    milliseconds,
)

__all__ = [
    "CORRELATION_BINS", "DAMAGED", "DESTROYED", "KEPT", "NOT_KNOWN", "ONLY_DUPLICATES", "THRESHOLDS", "AccuracyRecord",
    "AgreementEstimate", "ComparisonReport", "CorrelationHistogram", "Diagnostics", "DroppedBlock", "ErrorCurve",
    "Fidelity", "FidelityReport", "FoldReport", "GroupRecord", "InputRecord", "LabelFlips", "LatencyRecord",
    "MergeMap", "MergeRecord", "ModelSize", "NetworkShare", "PassRecord", "PerplexityRecord",
    "QuantizationRecord", "RefinementRecord", "Refusal", "RefusalKind", "Signs", "VarianceRatio",
    "Verdict", "check_thresholds", "failures_of", "join_diagnostics", "milliseconds",
]  # fmt: skip
