"""The user's request: its options, their checks, and units of quantities."""

from onnxfold.config.fold_config import (
    ALLOCATIONS,
    DEFAULT_CACHE,
    DEFAULT_SPARSITY,
    INPUTS,
    LIMITS,
    NO_CACHE,
    NOTHING,
    FoldConfig,
)

__all__ = ["ALLOCATIONS", "DEFAULT_CACHE", "DEFAULT_SPARSITY", "INPUTS", "LIMITS", "NOTHING", "NO_CACHE", "FoldConfig"]
