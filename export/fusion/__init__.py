"""Passes that reduce the number of operators for edge runtimes and keep the function."""

from onnxfold.export.fusion.local_rewrites import (
    DropInferenceDropout,
    FuseGelu,
    FuseGroupNorm,
    FuseHardSwish,
    FusePadding,
    WriteOldOperators,
)
from onnxfold.export.fusion.shapes import FreezeBatchShapes
from onnxfold.passes.base import Pipeline
from onnxfold.passes.fusion.fuse_batch_norm import FuseBatchNorm
from onnxfold.passes.normalize.branches import TakeBranches
from onnxfold.passes.normalize.constants import FoldConstants, InlineFunctions, LiftConstants
from onnxfold.passes.normalize.shapes import DropExpand, FreezeReshapes, LearnShapes, SequencesToSplit, WriteSplitSizes
from onnxfold.passes.normalize.unneeded import EliminateIdentity, RemoveUnused
from onnxfold.passes.views.reshapes import ShufflesToGather

__all__ = ["PREPARE", "PREPARE_C"]

_FOLD = FoldConstants(limit_bytes=16 << 20)

#: Before an export.
PREPARE = Pipeline((
    InlineFunctions(), LiftConstants(), WriteOldOperators(), DropInferenceDropout(), EliminateIdentity(), _FOLD,
    SequencesToSplit(), LearnShapes(), FreezeReshapes(), FreezeBatchShapes(), _FOLD, TakeBranches(_FOLD),
    LiftConstants(), EliminateIdentity(), _FOLD, ShufflesToGather(), WriteSplitSizes(), DropExpand(), FuseBatchNorm(),
    FusePadding(), FuseGroupNorm(), FuseGelu(), FuseHardSwish(), RemoveUnused(),
))  # fmt: skip

#: Before C is generated: fewer nodes, standard operators only. The generator knows each operator in every version.
PREPARE_C = Pipeline((
    InlineFunctions(), LiftConstants(), DropInferenceDropout(), EliminateIdentity(), _FOLD, FreezeReshapes(),
    FreezeBatchShapes(), _FOLD, DropExpand(), FuseBatchNorm(), FusePadding(), RemoveUnused(),
))  # fmt: skip
