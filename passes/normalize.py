"""Bring exported graphs into the form that channels can be followed through."""

from onnxfold.passes.base import Pipeline
from onnxfold.passes.drop_zero_bias import DropZeroBias
from onnxfold.passes.eliminate_identity import EliminateIdentity
from onnxfold.passes.fold_constants import FoldConstants
from onnxfold.passes.freeze_reshapes import FreezeReshapes
from onnxfold.passes.inline_functions import InlineFunctions
from onnxfold.passes.lift_constants import LiftConstants
from onnxfold.passes.remove_unused import RemoveUnused
from onnxfold.passes.sequences_to_split import SequencesToSplit
from onnxfold.passes.share_initializers import ShareInitializers
from onnxfold.passes.shuffles_to_gather import ShufflesToGather
from onnxfold.passes.unshare_initializers import UnshareInitializers
from onnxfold.passes.write_split_sizes import WriteSplitSizes

#: Before the analysis. BatchNormalization stays: its statistics are what repairs work with.
NORMALIZE = Pipeline(
    (
        InlineFunctions(),
        LiftConstants(),
        EliminateIdentity(),
        FoldConstants(),
        SequencesToSplit(),
        FreezeReshapes(),
        DropZeroBias(),
        ShufflesToGather(),
        WriteSplitSizes(),
        RemoveUnused(),
        UnshareInitializers(),
    )
)

#: After the fold.
CLEAN_UP = Pipeline((ShareInitializers(), RemoveUnused()))
