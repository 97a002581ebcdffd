"""Replace Dropout by the identity that it is at inference."""

from dataclasses import dataclass

from onnx import NodeProto, helper

from onnxfold.graph.nodes import node_key
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult


@dataclass(frozen=True)
class DropInferenceDropout(Pass):
    """Turn a Dropout that drops nothing, and whose mask nobody reads, into an Identity.

    EliminateIdentity removes such nodes from between activations; this also reaches the one that writes an output.
    """

    def run(self, view: GraphView) -> PassResult:
        """Rewrite in place."""
        replaced: dict[str, NodeProto] = {}
        for node in view.nodes:
            if node.op_type != "Dropout" or node.domain not in ("", "ai.onnx"):
                continue
            training = node.input[2] if len(node.input) > 2 else ""
            trains = bool(training) and not (view.is_weight(training) and not view.weight(training).reshape(-1)[0])
            read = any(view.consumers(o) or o in view.output_names for o in node.output[1:] if o)
            if trains or read:
                continue
            replaced[node_key(node)] = helper.make_node("Identity", node.input[:1], node.output[:1], node.name)
        return PassResult(view.substitute(replaced))
