"""Folding in tests: few generated inputs and no deep inversion, unless a test asks for them."""

from functools import lru_cache
from typing import Any

import onnx

import onnxfold
from onnxfold.api import FoldResult
from onnxfold.channels import FoldGroup
from onnxfold.graph.files.load import ModelLike

QUICK = {"inputs": "dead-leaves", "samples": 16}


def quick_fold(model: ModelLike, sparsity: float | None = None, **options: Any) -> FoldResult:
    """Fold as users do, on fewer inputs."""
    return onnxfold.fold(model, sparsity, **{**QUICK, **options})


def groups_of(model: onnx.ModelProto) -> list[FoldGroup]:
    """Return the fold groups of a model; those of the last models are kept."""
    return _groups_of(model.SerializeToString(deterministic=True))


@lru_cache(maxsize=64)
def _groups_of(serialized: bytes) -> list[FoldGroup]:
    return onnxfold.inspect(onnx.ModelProto.FromString(serialized))


#: Methods that merge equal channels at no loss; pruning drops one of two equal channels, recalibration takes the
#: statistics of whatever inputs it is given, and independent channels are not equal ones.
LOSSLESS = ("fold-ls", "fold-ar", "fold-naive")
