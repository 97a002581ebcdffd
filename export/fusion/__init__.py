"""Passes that reduce the number of operators for edge runtimes and keep the function."""

from onnxfold.export.fusion import local_rewrites as local
from onnxfold.export.fusion.shapes import FreezeBatchShapes
from onnxfold.passes.base import Pipeline
from onnxfold.passes.fusion.fuse_batch_norm import FuseBatchNorm
from onnxfold.passes.normalize.branches import TakeBranches
from onnxfold.passes.normalize.constants import FoldConstants, InlineFunctions, LiftConstants
from onnxfold.passes.normalize.shapes import DropExpand, FreezeReshapes, LearnShapes, SequencesToSplit, WriteSplitSizes
from onnxfold.passes.normalize.unneeded import EliminateIdentity, RemoveUnused
from onnxfold.passes.views.reshapes import ShufflesToGather

_FOLD = FoldConstants(limit_bytes=16 << 20)

#: Before an export.
PREPARE = Pipeline((
    InlineFunctions(), LiftConstants(), local.WriteOldOperators(), local.DropInferenceDropout(), EliminateIdentity(),
    _FOLD, SequencesToSplit(), LearnShapes(), FreezeReshapes(), FreezeBatchShapes(), _FOLD, TakeBranches(_FOLD),
    LiftConstants(), EliminateIdentity(), _FOLD, ShufflesToGather(), WriteSplitSizes(), DropExpand(), FuseBatchNorm(),
    local.FusePadding(), local.FuseGroupNorm(), local.FuseGelu(), local.FuseHardSwish(), RemoveUnused(),
))  # fmt: skip

#: Before C is generated, for one sample: fewer nodes, standard operators only. The generator knows each operator in
#: every version.
PREPARE_C = Pipeline((
    InlineFunctions(), LiftConstants(), local.DropInferenceDropout(), EliminateIdentity(), _FOLD, FreezeReshapes(),
    _FOLD, DropExpand(), FuseBatchNorm(), local.FusePadding(), RemoveUnused(),
))  # fmt: skip
