"""The user's request: its options, their checks, and units of quantities."""

from onnxfold.config.checks import NO_CACHE
from onnxfold.config.fold_config import OPTIONS, FoldConfig
from onnxfold.config.goals import LIMITS
from onnxfold.config.values import (
    ALLOCATIONS,
    DEFAULT_CACHE,
    DEFAULT_OBJECTIVE,
    DEFAULT_ROUND_TO,
    DTYPES,
    EXACT,
    FAITHFUL,
    INPUTS,
    INT8,
    MOST_REMOVED,
    NO_REFINEMENT,
    NOTHING,
    REFINEMENTS,
    TORCH_DEVICES,
)

__all__ = [
    "ALLOCATIONS", "DEFAULT_CACHE", "DEFAULT_OBJECTIVE", "DEFAULT_ROUND_TO", "DTYPES", "EXACT", "FAITHFUL", "INPUTS",
    "INT8", "LIMITS", "MOST_REMOVED", "NOTHING", "NO_CACHE", "NO_REFINEMENT", "OPTIONS", "REFINEMENTS", "TORCH_DEVICES",
    "FoldConfig",
]  # fmt: skip
