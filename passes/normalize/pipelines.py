"""Sequences of passes that bring exported graphs into the normal form."""

from collections.abc import Mapping

from onnxfold.passes.base import Pipeline
from onnxfold.passes.normalize import unneeded
from onnxfold.passes.normalize.constants import FoldConstants, InlineFunctions, LiftConstants
from onnxfold.passes.normalize.shapes import FreezeReshapes, LearnShapes, SequencesToSplit, WriteSplitSizes
from onnxfold.passes.views import reshapes
from onnxfold.passes.views.heads_from_batch import HeadsFromBatch

#: Before the analysis. BatchNormalization stays: its statistics are what repairs work with.
NORMALIZE = Pipeline((
    InlineFunctions(), LiftConstants(), unneeded.EliminateIdentity(), FoldConstants(), SequencesToSplit(),
    LearnShapes(), FreezeReshapes(), unneeded.RemoveUnused(),  # of what computed target shapes
    reshapes.HeadsToAxis(), HeadsFromBatch(),
    reshapes.RepeatsToGather(),  # before views are moved, one of which may be the first of a repetition
    reshapes.ViewsToTranspose(), reshapes.PackedToSlices(), unneeded.DropZeroBias(),
    unneeded.DropZeroStates(), reshapes.ShufflesToGather(), WriteSplitSizes(), unneeded.RemoveUnused(),
    unneeded.UnshareInitializers(),
))  # fmt: skip


def clean_up(copies: Mapping[str, str]) -> Pipeline:
    """Return the pipeline that runs after a fold."""
    return Pipeline((unneeded.ShareInitializers(copies), unneeded.RemoveUnused()))
