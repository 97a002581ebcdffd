"""Sequences of passes that bring exported graphs into the normal form."""

from collections.abc import Mapping

from onnxfold.passes.base import Pipeline
from onnxfold.passes.normalize import shapes, unneeded
from onnxfold.passes.normalize.affine import MergeAffine
from onnxfold.passes.normalize.branches import TakeBranches
from onnxfold.passes.normalize.constants import FoldConstants, InlineFunctions, LiftConstants
from onnxfold.passes.normalize.unneeded import RemoveUnused
from onnxfold.passes.views import reshapes
from onnxfold.passes.views.heads_from_batch import HeadsFromBatch

_CONSTANTS = (LiftConstants(), unneeded.EliminateIdentity(), FoldConstants(share=1 / 16))
#: Before the analysis. BatchNormalization stays: its statistics are what repairs work with.
NORMALIZE = Pipeline((
    InlineFunctions(), *_CONSTANTS, TakeBranches(Pipeline(_CONSTANTS)), shapes.SequencesToSplit(),
    shapes.LearnShapes(), shapes.FreezeReshapes(), shapes.DropExpand(), RemoveUnused(),  # of what computed targets
    reshapes.HeadsToAxis(), HeadsFromBatch(),
    reshapes.RepeatsToGather(),  # before views are moved, one of which may be the first of a repetition
    reshapes.ViewsToTranspose(), reshapes.PackedToSlices(), MergeAffine(), unneeded.DropZeroBias(),
    unneeded.DropZeroStates(), reshapes.ShufflesToGather(), shapes.WriteSplitSizes(), RemoveUnused(),
    unneeded.UnshareInitializers(),
))  # fmt: skip


def clean_up(copies: Mapping[str, str]) -> Pipeline:
    """Return the pipeline that runs after a fold."""
    return Pipeline((unneeded.ShareInitializers(copies), RemoveUnused()))
