"""Reports of a fold, as plain values."""

from onnxfold.report.agreement import AgreementEstimate, Signs
from onnxfold.report.comparison import ComparisonReport
from onnxfold.report.diagnostics import (
    CORRELATION_BINS,
    CorrelationHistogram,
    Diagnostics,
    ErrorCurve,
    VarianceRatio,
    join_diagnostics,
)
from onnxfold.report.dropped import DroppedBlock
from onnxfold.report.fidelity import Fidelity
from onnxfold.report.fold_report import (
    ONLY_DUPLICATES,
    AccuracyRecord,
    FidelityReport,
    FoldReport,
    GroupRecord,
    InputRecord,
    ModelSize,
    PassRecord,
    QuantizationRecord,
    Refusal,
    RefusalKind,
)
from onnxfold.report.latency import LatencyRecord, milliseconds
from onnxfold.report.merge import MergeRecord, NetworkShare
from onnxfold.report.merge_map import MergeMap
from onnxfold.report.network import NetworkNode
from onnxfold.report.perplexity import PerplexityRecord
from onnxfold.report.tuning import TuningRecord
from onnxfold.report.verdict import DAMAGED, DESTROYED, KEPT, NOT_KNOWN, Verdict

__all__ = [
    "CORRELATION_BINS",
    "DAMAGED",
    "DESTROYED",
    "KEPT",
    "NOT_KNOWN",
    "ONLY_DUPLICATES",
    "AccuracyRecord",
    "AgreementEstimate",
    "ComparisonReport",
    "CorrelationHistogram",
    "Diagnostics",
    "DroppedBlock",
    "ErrorCurve",
    "Fidelity",
    "FidelityReport",
    "FoldReport",
    "GroupRecord",
    "InputRecord",
    "LatencyRecord",
    "MergeMap",
    "MergeRecord",
    "ModelSize",
    "NetworkNode",
    "NetworkShare",
    "PassRecord",
    "PerplexityRecord",
    "QuantizationRecord",
    "Refusal",
    "RefusalKind",
    "Signs",
    "TuningRecord",
    "VarianceRatio",
    "Verdict",
    "join_diagnostics",
    "milliseconds",
]
