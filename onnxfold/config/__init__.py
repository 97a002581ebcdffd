"""The user's request: its options, their checks, and units of quantities."""

from onnxfold.config.fold_config import (
    ALLOCATIONS,
    DEFAULT_CACHE,
    DEFAULT_OBJECTIVE,
    DEFAULT_ROUND_TO,
    DEFAULT_SPARSITY,
    DTYPES,
    INPUTS,
    INT8,
    NO_CACHE,
    NOTHING,
    FoldConfig,
)
from onnxfold.config.goals import LIMITS

__all__ = [
    "ALLOCATIONS", "DEFAULT_CACHE", "DEFAULT_OBJECTIVE", "DEFAULT_ROUND_TO", "DEFAULT_SPARSITY", "DTYPES", "INPUTS",
    "INT8", "LIMITS", "NOTHING", "NO_CACHE", "FoldConfig",
]  # fmt: skip
