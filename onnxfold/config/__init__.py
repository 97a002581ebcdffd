"""The user's request: its options, their checks, and units of quantities."""

from onnxfold.config.checks import NO_CACHE
from onnxfold.config.fold_config import OPTIONS, FoldConfig
from onnxfold.config.goals import LIMITS
from onnxfold.config.values import INT8, NO_REFINEMENT, NOTHING

__all__ = ["INT8", "LIMITS", "NOTHING", "NO_CACHE", "NO_REFINEMENT", "OPTIONS", "FoldConfig"]
