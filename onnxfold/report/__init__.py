"""Reports of a fold, as plain values."""

from onnxfold.report.diagnostics import (
    CORRELATION_BINS,
    CorrelationHistogram,
    Diagnostics,
    ErrorCurve,
    VarianceRatio,
    joined,
)
from onnxfold.report.fold_report import (
    ONLY_DUPLICATES,
    Fidelity,
    FidelityReport,
    FoldReport,
    GroupRecord,
    InputRecord,
    ModelSize,
    PassRecord,
    Refusal,
)

__all__ = [
    "CORRELATION_BINS",
    "ONLY_DUPLICATES",
    "CorrelationHistogram",
    "Diagnostics",
    "ErrorCurve",
    "Fidelity",
    "FidelityReport",
    "FoldReport",
    "GroupRecord",
    "InputRecord",
    "ModelSize",
    "PassRecord",
    "Refusal",
    "VarianceRatio",
    "joined",
]
