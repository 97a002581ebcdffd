"""What the user asks for: the request, its checks, and the units of quantities."""

from onnxfold.config.fold_config import (
    ALLOCATIONS,
    DEFAULT_SPARSITY,
    INPUTS,
    LIMITS,
    NOTHING,
    FoldConfig,
)

__all__ = ["ALLOCATIONS", "DEFAULT_SPARSITY", "INPUTS", "LIMITS", "NOTHING", "FoldConfig"]
