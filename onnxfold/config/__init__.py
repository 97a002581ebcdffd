"""The user's request: its options, their checks, and units of quantities."""

from onnxfold.config.checks import NO_CACHE
from onnxfold.config.fold_config import OPTIONS, FoldConfig
from onnxfold.config.goals import LIMITS
from onnxfold.config.values import (
    DEFAULT_CACHE,
    DEFAULT_OBJECTIVE,
    EXACT,
    FAITHFUL,
    INT8,
    MOST_REMOVED,
    NO_REFINEMENT,
    NOTHING,
)

__all__ = [
    "DEFAULT_CACHE", "DEFAULT_OBJECTIVE", "EXACT", "FAITHFUL",
    "INT8", "LIMITS", "MOST_REMOVED", "NOTHING", "NO_CACHE", "NO_REFINEMENT", "OPTIONS",
    "FoldConfig",
]  # fmt: skip
