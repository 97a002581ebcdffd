"""Sequences of passes that bring exported graphs into the normal form."""

from collections.abc import Mapping

from onnxfold.passes.base import Pipeline
from onnxfold.passes.normalize.branches import TakeBranches
from onnxfold.passes.normalize.constants import FoldConstants, InlineFunctions, LiftConstants
from onnxfold.passes.normalize.shapes import DropExpand, FreezeReshapes, LearnShapes, SequencesToSplit, WriteSplitSizes
from onnxfold.passes.normalize.unneeded import (
    DropZeroBias,
    DropZeroStates,
    EliminateIdentity,
    RemoveUnused,
    ShareInitializers,
    UnshareInitializers,
)
from onnxfold.passes.views.heads_from_batch import HeadsFromBatch
from onnxfold.passes.views.reshapes import (
    HeadsToAxis,
    PackedToSlices,
    RepeatsToGather,
    ShufflesToGather,
    ViewsToTranspose,
)

_CONSTANTS = (LiftConstants(), EliminateIdentity(), FoldConstants(share=1 / 16))
#: Before the analysis. BatchNormalization stays: its statistics are what repairs work with.
NORMALIZE = Pipeline((
    InlineFunctions(), *_CONSTANTS, TakeBranches(Pipeline(_CONSTANTS)), SequencesToSplit(),
    LearnShapes(), FreezeReshapes(), DropExpand(), RemoveUnused(),  # of what computed target shapes
    HeadsToAxis(), HeadsFromBatch(),
    RepeatsToGather(),  # before views are moved, one of which may be the first of a repetition
    ViewsToTranspose(), PackedToSlices(), DropZeroBias(), DropZeroStates(), ShufflesToGather(), WriteSplitSizes(),
    RemoveUnused(), UnshareInitializers(),
))  # fmt: skip


def clean_up(copies: Mapping[str, str]) -> Pipeline:
    """Return the pipeline that runs after a fold."""
    return Pipeline((ShareInitializers(copies), RemoveUnused()))
