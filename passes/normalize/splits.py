"""Write Split with the sizes of its parts, and in place of a sequence."""

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, helper

from onnxfold.graph.nodes import attr_int, attribute, rewritten
from onnxfold.graph.patterns import Match, Mismatch, Op
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult, Rewrite

#: From this operator set on the sizes are an input.
_SIZES_AS_INPUT = 13


@dataclass(frozen=True)
class WriteSplitSizes(Rewrite):
    """Give every Split explicit sizes where the shapes are known.

    Without them a Split cuts into equal parts; parts of a folded axis need not be equal.
    """

    patterns = (Op("Split"),)

    def replace(self, view: GraphView, match: Match) -> list[NodeProto]:
        """Add the attribute or the input."""
        (node,) = match.nodes
        if any(node.input[1:]) or attribute(node, "split") is not None:
            raise Mismatch("it has sizes")
        axis = attr_int(node, "axis", 0)
        shapes = [view.shape(y) for y in node.output]
        sizes = [None if s is None else s[axis] for s in shapes]
        if None in sizes:
            raise Mismatch("the width of a part is unknown")
        if view.opset() < _SIZES_AS_INPUT:
            return [rewritten(node, attributes={"split": sizes})]
        split = view.add_weight(f"{node.output[0]}_split", np.array(sizes, np.int64))
        return [rewritten(node, inputs=[node.input[0], split], without=["num_outputs"])]


@dataclass(frozen=True)
class SequencesToSplit(Pass):
    """Replace SplitToSequence by Split where every reader is a SequenceAt with a constant position.

    The unoptimised dynamo export writes `chunk` and `split` this way; channels cannot be followed into a sequence.
    """

    def run(self, view: GraphView) -> PassResult:
        """Replace the splitting node and drop its readers."""
        if view.opset() < _SIZES_AS_INPUT:
            return PassResult(modified=False)
        replaced: dict[str, NodeProto] = {}
        dropped: set[str] = set()
        for node in view.nodes:
            split = _split_node(view, node) if node.op_type == "SplitToSequence" else None
            if split is not None:
                replaced[node.output[0]] = split
                dropped.update(reader.output[0] for reader in view.consumers(node.output[0]))
        return PassResult(view.substitute(replaced, dropped))


def _split_node(view: GraphView, node: NodeProto) -> NodeProto | None:
    shape = view.shape(node.input[0])
    readers = view.consumers(node.output[0])
    if shape is None or len(node.input) < 2 or not view.is_weight(node.input[1]) or not readers:
        return None
    axis = attr_int(node, "axis", 0) % len(shape)
    width, lengths = shape[axis], view.weight(node.input[1])
    if width is None or node.output[0] in view.output_names:
        return None
    size = int(lengths.reshape(-1)[0])
    sizes = lengths.tolist() if lengths.ndim else [min(size, width - start) for start in range(0, width, size)]
    outputs = [view.fresh_name(f"{node.output[0]}_{i}") for i in range(len(sizes))]
    for reader in readers:
        if reader.op_type != "SequenceAt" or not view.is_weight(reader.input[1]):
            return None
        place = int(view.weight(reader.input[1]).reshape(-1)[0])
        if not -len(sizes) <= place < len(sizes) or outputs[place] in {r.output[0] for r in readers}:
            return None  # out of range, or the same part read twice
        outputs[place] = reader.output[0]
    split = view.add_weight(f"{node.output[0]}_sizes", np.array(sizes, np.int64))
    return helper.make_node("Split", [node.input[0], split], outputs, node.name, axis=axis)
