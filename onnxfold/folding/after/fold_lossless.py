"""A fold that only takes what changes no output."""

from dataclasses import replace

from onnx import TensorProto

from onnxfold.budget.width_request import WidthRequest
from onnxfold.errors import VerificationError
from onnxfold.fidelity.verify import VerificationResult
from onnxfold.folding.fold_model import Decision, FoldedModel, fold_model
from onnxfold.folding.fold_task import FoldTask
from onnxfold.folding.inputs.choose_inputs import ChosenInputs
from onnxfold.folding.prepare import may_shrink
from onnxfold.graph.files.load import load
from onnxfold.graph.view import GraphView

_HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
#: Largest relative error that is rounding: of types with few digits, and of others.
_COARSE, _FINE = 5e-3, 1e-4
_NOTHING = (
    "nothing to save without loss: no weight is stored twice, and no channel is dead or the duplicate of another; the "
    "output is a copy of the model"
)


def fold_lossless(task: FoldTask, request: WidthRequest, data: ChosenInputs) -> FoldedModel:
    """Merge exact duplicates and dead channels; a model that has none, nor equal weights, is copied."""
    opened, config = task.opened, task.config
    prepared = task.prepared(data.inputs)
    pairs = [pair for graph in prepared.graphs for pair in zip(graph.groups, graph.lossless, strict=True)]
    widths = [width if may_shrink(group, config.keep) else group.size for group, width in pairs]
    folded = fold_model(prepared, replace(request, widths=widths), config, task.progress)
    if folded.size.parameters < opened.size.parameters:
        return folded
    return replace(folded, view=load(opened.source), size=opened.size, blocks=(), decision=Decision((_NOTHING,)))


def require_lossless(checked: VerificationResult, view: GraphView) -> None:
    """Refuse a result that computes other values than the original."""
    if checked.fidelity is None:
        why = "; ".join(checked.notes)
        raise VerificationError(f"whether nothing is lost could not be checked: {why}; --no-verify writes it unchecked")
    coarse = any(view.weight_type(name) in _HALVES for name in view.float_weight_names())
    worst = max(checked.fidelity.outputs, key=lambda output: output.relative_error)
    if worst.relative_error > (_COARSE if coarse else _FINE):
        raise VerificationError(
            f"nothing was written: output '{worst.output}' would change by {worst.relative_error:.3g}, which is more "
            "than rounding; please report this"
        )
