"""Inline model-local functions."""

from dataclasses import dataclass

from onnxfold.graph.inlining import inline_calls
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult


@dataclass(frozen=True)
class InlineFunctions(Pass):
    """Replace calls of model-local functions by their bodies, so that channels can be followed through them."""

    def run(self, view: GraphView) -> PassResult:
        """Inline with onnx's own inliner; weights do not pass through it."""
        if not view.model.functions:
            return PassResult(modified=False)
        view.replace_model(inline_calls(view.model))
        return PassResult(modified=True)
