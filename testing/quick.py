"""Folding in tests: few generated inputs and no deep inversion, unless a test asks for them."""

from typing import Any

import onnxfold
from onnxfold.api import FoldResult
from onnxfold.graph.files.load import ModelLike

QUICK = {"inputs": "dead-leaves", "samples": 16}


def quick_fold(model: ModelLike, sparsity: float | None = None, **options: Any) -> FoldResult:
    """Fold as users do, on fewer inputs."""
    return onnxfold.fold(model, sparsity, **{**QUICK, **options})


#: Methods that merge equal channels at no loss; pruning drops one of two equal channels, recalibration takes the
#: statistics of whatever inputs it is given, and independent channels are not equal ones.
LOSSLESS = ("fold-ls", "fold-ar", "fold-naive")
