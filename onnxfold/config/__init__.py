"""The user's request: its options, their checks, and units of quantities."""

from onnxfold.config.fold_config import (
    ALLOCATIONS,
    DEFAULT_SPARSITY,
    INPUTS,
    LIMITS,
    NOTHING,
    FoldConfig,
)

__all__ = ["ALLOCATIONS", "DEFAULT_SPARSITY", "INPUTS", "LIMITS", "NOTHING", "FoldConfig"]
