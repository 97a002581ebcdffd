"""Remove what computes nothing: Expand that repeats what broadcasting does, Dropout of an inference."""

from dataclasses import dataclass

from onnx import NodeProto, helper

from onnxfold.graph.patterns import Match, Mismatch, Op, dims
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult, Rewrite

_BROADCASTING = frozenset(
    {"Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Where", "Equal", "Greater", "Less", "And", "Or"}
)


@dataclass(frozen=True)
class DropExpand(Pass):
    """Let the readers of an Expand read its input if every reader broadcasts.

    It does if another of its inputs has the full shape. Known symbols count as sizes: a free batch equals itself.
    """

    def run(self, view: GraphView) -> PassResult:
        """Rename inputs of the readers."""
        renamed: dict[str, str] = {}
        for node in view.nodes:
            if node.op_type == "Expand" and node.output[0] not in view.output_names:
                readers = view.consumers(node.output[0])
                if readers and all(_broadcasts(view, reader, node) for reader in readers):
                    renamed[node.output[0]] = node.input[0]
        view.rename_inputs(renamed)
        return PassResult(view.substitute({}, removed=renamed))


def _broadcasts(view: GraphView, reader: NodeProto, expand: NodeProto) -> bool:
    """Whether a reader's result has its shape without the Expand, because another input has it."""
    if reader.op_type not in _BROADCASTING:
        return False
    wanted = dims(view, expand.output[0])
    others = [n for n in reader.input if n != expand.output[0]]
    return wanted is not None and "" not in wanted and any(dims(view, other) == wanted for other in others)


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
