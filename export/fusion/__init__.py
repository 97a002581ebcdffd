"""Passes that reduce the number of operators for edge runtimes and keep the function."""

from onnxfold.export.fusion.drop_expand import DropExpand, DropInferenceDropout
from onnxfold.export.fusion.freeze_batch_shapes import FreezeBatchShapes
from onnxfold.export.fusion.fuse_activations import FuseGelu, FuseGroupNorm, FuseHardSwish, FusePadding
from onnxfold.export.fusion.inline_constant_if import InlineConstantIf
from onnxfold.export.fusion.write_old_operators import WriteOldOperators
from onnxfold.passes.base import Pipeline
from onnxfold.passes.fusion.fuse_batch_norm import FuseBatchNorm
from onnxfold.passes.normalize.constants import FoldConstants, InlineFunctions, LiftConstants
from onnxfold.passes.normalize.shapes import FreezeReshapes, LearnShapes, SequencesToSplit, WriteSplitSizes
from onnxfold.passes.normalize.unneeded import EliminateIdentity, RemoveUnused
from onnxfold.passes.views.reshapes import ShufflesToGather

__all__ = ["PREPARE"]

#: Before an export.
PREPARE = Pipeline(
    (
        InlineFunctions(),
        LiftConstants(),
        WriteOldOperators(),
        DropInferenceDropout(),
        EliminateIdentity(),
        FoldConstants(limit_bytes=16 << 20),
        SequencesToSplit(),
        LearnShapes(),
        FreezeReshapes(),
        FreezeBatchShapes(),
        FoldConstants(limit_bytes=16 << 20),
        InlineConstantIf(),
        LiftConstants(),
        EliminateIdentity(),
        FoldConstants(limit_bytes=16 << 20),
        ShufflesToGather(),
        WriteSplitSizes(),
        DropExpand(),
        FuseBatchNorm(),
        FusePadding(),
        FuseGroupNorm(),
        FuseGelu(),
        FuseHardSwish(),
        RemoveUnused(),
    )
)
