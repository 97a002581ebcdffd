"""Sequences of passes that bring exported graphs into the normal form."""

from collections.abc import Mapping

from onnxfold.passes.base import Pipeline
from onnxfold.passes.normalize.drop_zero_bias import DropZeroBias
from onnxfold.passes.normalize.drop_zero_states import DropZeroStates
from onnxfold.passes.normalize.eliminate_identity import EliminateIdentity
from onnxfold.passes.normalize.fold_constants import FoldConstants
from onnxfold.passes.normalize.freeze_reshapes import FreezeReshapes
from onnxfold.passes.normalize.inline_functions import InlineFunctions
from onnxfold.passes.normalize.learn_shapes import LearnShapes
from onnxfold.passes.normalize.lift_constants import LiftConstants
from onnxfold.passes.normalize.remove_unused import RemoveUnused
from onnxfold.passes.normalize.share_initializers import ShareInitializers
from onnxfold.passes.normalize.unshare_initializers import UnshareInitializers
from onnxfold.passes.normalize.write_split_sizes import WriteSplitSizes
from onnxfold.passes.views.heads_from_batch import HeadsFromBatch
from onnxfold.passes.views.heads_to_axis import HeadsToAxis
from onnxfold.passes.views.packed_to_slices import PackedToSlices
from onnxfold.passes.views.repeats_to_gather import RepeatsToGather
from onnxfold.passes.views.sequences_to_split import SequencesToSplit
from onnxfold.passes.views.shuffles_to_gather import ShufflesToGather
from onnxfold.passes.views.views_to_transpose import ViewsToTranspose

#: Before the analysis. BatchNormalization stays: its statistics are what repairs work with.
NORMALIZE = Pipeline(
    (
        InlineFunctions(),
        LiftConstants(),
        EliminateIdentity(),
        FoldConstants(),
        SequencesToSplit(),
        LearnShapes(),
        FreezeReshapes(),
        RemoveUnused(),  # of what computed target shapes
        HeadsToAxis(),
        HeadsFromBatch(),
        RepeatsToGather(),  # before views are moved, one of which may be the first of a repetition
        ViewsToTranspose(),
        PackedToSlices(),
        DropZeroBias(),
        DropZeroStates(),
        ShufflesToGather(),
        WriteSplitSizes(),
        RemoveUnused(),
        UnshareInitializers(),
    )
)


def clean_up(copies: Mapping[str, str]) -> Pipeline:
    """Return the pipeline that runs after a fold."""
    return Pipeline(
        (
            ShareInitializers(copies),
            RemoveUnused(),
        )
    )
