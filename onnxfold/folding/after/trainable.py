"""A model as a torch module, to be trained and written back."""

from typing import TYPE_CHECKING

from onnxfold.config import FoldConfig, checks
from onnxfold.config.checks import takes_keywords
from onnxfold.folders import takes_folders
from onnxfold.folding.fold_result import files_read
from onnxfold.graph.files.load import ModelLike, blames_broken_files, load
from onnxfold.passes.normalize.constants import InlineFunctions, LiftConstants
from onnxfold.torch_graph.availability import load_torch, require_torch

if TYPE_CHECKING:
    from onnxfold.torch_graph.module import TorchModel


@takes_keywords()
@takes_folders
@blames_broken_files
def to_torch(model: ModelLike, *, device: str = "cpu") -> "TorchModel":
    """Return a model as a torch module, to be trained and written back. Needs torch (extra ``torch``).

    Parameters
    ----------
    model : path or ModelProto
        The model, folded or not, or the folder of a language model; it is not changed.
    device : str
        Where torch computes.

    Returns
    -------
    TorchModel
        A ``torch.nn.Module`` that takes the model's inputs in order. Its parameters are the weights, and
        ``.to_onnx(path)`` writes the model with the weights that they are then. BatchNormalizations keep their
        statistics.

    Raises
    ------
    ConfigError
        If torch is not installed, or there is nothing to train.
    ModelLoadError, UnsupportedModelError
        If the model cannot be read, or an operator has no form in torch.

    Examples
    --------
    >>> from importlib.resources import files
    >>> import onnxfold, torch
    >>> net = onnxfold.to_torch(files("onnxfold.data") / "lenet5.onnx")
    >>> net(torch.zeros(2, 1, 32, 32)).shape
    torch.Size([2, 10])
    """
    require_torch("a torch module")
    load_torch()
    from onnxfold.torch_graph.module import TorchModel

    view = load(model)
    for step in (InlineFunctions(), LiftConstants()):
        step(view)
    return TorchModel(view, checks.text("device", device), files_read(model, FoldConfig()))
