"""Inline model-local functions."""

from dataclasses import dataclass

import onnx.inliner

from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult


@dataclass(frozen=True)
class InlineFunctions(Pass):
    """Replace calls of model-local functions by their bodies, so that channels can be followed through them."""

    def run(self, view: GraphView) -> PassResult:
        """Inline with onnx's own inliner; weights do not pass through it."""
        if not view.model.functions:
            return PassResult(modified=False)
        inlined = onnx.inliner.inline_local_functions(view.model)
        view.model.CopyFrom(inlined)
        view.touch()
        return PassResult(modified=True)
