"""Tensors whose shapes depend on the values of inputs, and not on the shapes of inputs alone."""

from onnxfold.graph.nodes import DEFAULT_DOMAINS, read_names, subgraphs
from onnxfold.graph.view import GraphView

#: Operators whose results have as many elements as values say.
_COUNTING = frozenset({"Compress", "NonMaxSuppression", "NonZero", "StringSplit", "Unique"})
#: Inputs whose values are sizes of the results, or axes of them, by operator.
_SIZES = {
    "AffineGrid": (1,), "BlackmanWindow": (0,), "CenterCropPad": (1,), "Col2Im": (1,), "ConstantOfShape": (0,),
    "DFT": (1,), "Expand": (1,), "HammingWindow": (0,), "HannWindow": (0,), "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1), "OneHot": (1,), "Pad": (1, 3), "Range": (0, 1, 2), "Reshape": (1,),
    "Resize": (1, 2, 3), "STFT": (1, 3), "Slice": (1, 2, 3, 4), "Split": (1,), "Squeeze": (1,), "Tile": (1,),
    "TopK": (1,), "Unsqueeze": (1,), "Upsample": (1,),
    **dict.fromkeys(("ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"), (1,)),
}  # fmt: skip
_MEASURING = frozenset({"Shape", "Size"})


def open_shapes(view: GraphView) -> set[str]:
    """Return the tensors whose shapes may depend on values of inputs; operators of other domains may do anything."""
    shapes: set[str] = set()
    values = set(view.input_names)
    for node in view.nodes:
        read = set(read_names(node))
        sizes = {node.input[i] for i in _SIZES.get(node.op_type, ()) if i < len(node.input)}
        is_known = node.domain in DEFAULT_DOMAINS and not any(True for _ in subgraphs(node))
        is_open = not is_known or node.op_type in _COUNTING or bool(read & shapes or sizes & values)
        made = set(filter(None, node.output))
        if is_open:
            shapes |= made
        if is_open or (node.op_type not in _MEASURING and read & values):
            values |= made
    return shapes
