"""Make trained ONNX models structurally smaller, without data and without training.

Examples
--------
>>> import onnxfold
>>> result = onnxfold.fold("model.onnx", sparsity=0.5)  # doctest: +SKIP
>>> result.save("folded.onnx")  # doctest: +SKIP
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from onnxfold._version import __version__

if TYPE_CHECKING:
    from onnxfold.api import FoldResult, compare, fold, inspect, to_torch
    from onnxfold.config import FoldConfig
    from onnxfold.merging import merge

__all__ = ["FoldConfig", "FoldResult", "__version__", "compare", "fold", "inspect", "merge", "to_torch"]


# Before onnxruntime is imported: version 1.32 reports its use to its maker, and leaves files for that in the folder of
# temporary files and in the user's cache.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import the API on first use: `onnxfold --version` needs neither onnx nor scipy."""
    if name not in __all__:
        raise AttributeError(f"module 'onnxfold' has no attribute {name!r}")
    homes = {"merge": "onnxfold.merging", "FoldConfig": "onnxfold.config"}
    return getattr(import_module(homes.get(name, "onnxfold.api")), name)
