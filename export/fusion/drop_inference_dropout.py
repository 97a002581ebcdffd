"""Replace Dropout by the identity that it is at inference."""

from dataclasses import dataclass

from onnx import NodeProto, helper

from onnxfold.graph.patterns import Match, Mismatch, Op
from onnxfold.graph.view import GraphView
from onnxfold.passes.rewrite import Rewrite


@dataclass(frozen=True)
class DropInferenceDropout(Rewrite):
    """Turn a Dropout that drops nothing, and whose mask nobody reads, into an Identity.

    EliminateIdentity removes such nodes from between activations; this also reaches the one that writes an output.
    """

    patterns = (Op("Dropout"),)

    def replace(self, view: GraphView, match: Match) -> list[NodeProto]:
        """Return an Identity."""
        (node,) = match.nodes
        training = node.input[2] if len(node.input) > 2 else ""
        if training and not (view.is_weight(training) and not view.weight(training).reshape(-1)[0]):
            raise Mismatch("it may drop")
        if any(view.consumers(o) or o in view.output_names for o in node.output[1:] if o):
            raise Mismatch("its mask is read")
        return [helper.make_node("Identity", node.input[:1], node.output[:1], node.name)]
