"""Inputs that several folds of a model share."""

from onnxfold.config import FoldConfig
from onnxfold.folders import takes_folders
from onnxfold.folding.inputs.choose_inputs import ChosenInputs, choose_inputs, generates
from onnxfold.folding.methods import find_method
from onnxfold.folding.open_model import Opening, open_model
from onnxfold.graph.files.load import ModelLike, blames_broken_files
from onnxfold.machine.memory import memory_limit
from onnxfold.progress import Progress, silent


@takes_folders
@blames_broken_files
def prepare_inputs(model: ModelLike, config: FoldConfig, progress: Progress = silent) -> ChosenInputs:
    """Return the inputs that all folds of a model with the same seed, kind of inputs and data read."""
    chosen = find_method(config.method, cluster=config.cluster, repair=config.repair)
    with memory_limit(config.max_memory):
        opening = Opening(needs_groups=False, sizes=generates(config))
        opened = open_model(model, config.input_shapes, progress, opening)
        return choose_inputs(opened, config, chosen, progress, needed=True)
