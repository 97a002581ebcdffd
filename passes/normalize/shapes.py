"""Dimensions that inference does not follow are learned; targets and sizes become constants; an Expand may go."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from onnx import NodeProto, helper

from onnxfold.graph.nodes import attr_int, attribute, node_key, rewritten, with_input
from onnxfold.graph.patterns import Match, Mismatch, Op, dims
from onnxfold.graph.shapes.foreign_types import symbols_of, with_sums
from onnxfold.graph.shapes.shape_inference import UNNAMED, symbolic_types
from onnxfold.graph.tensors import Shape, TensorType
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult, Rewrite
from onnxfold.passes.normalize.constants import FoldConstants

#: Sizes of the i-th symbol in three runs; those of images are large enough for pooling. No sum or product of small
#: ones is another one in all three.
_SIZES = ((7, 13, 23, 37, 53, 71, 97, 113), (11, 19, 31, 47, 67, 89, 107, 131), (5, 29, 17, 61, 43, 103, 79, 127))
_OF_IMAGES = ((64, 128, 192, 256), (160, 96, 288, 224), (128, 224, 96, 320))
#: What lengths are longer by in a fourth run: there are several windows of audio in it.
_LONG = 1 << 15
#: What a dimension without a symbol is called here.
_OPEN = "onnxfold_open_{}"


class LearnShapes(Pass):
    """Tell the graph dimensions that are the same number, or the length of the same input, at three sizes of inputs.

    Exporters compute target shapes and masks from lengths by Range, Equal, Where and the like. With numbers for all
    lengths these are constants, and every dimension is a number. Nothing is run but what lengths decide.
    """

    def run(self, view: GraphView) -> PassResult:
        """Infer shapes with three choices of numbers; nothing is done where no dimension is open."""
        with view.without_assumptions():
            names = _symbols(view)
            tensors = [o for node in view.nodes for o in node.output if o]
            unknown = [t for t in tensors if view.shape(t) is None]
            symbolic = symbolic_types(view.model, view.weights, set(names)) if unknown else {}
            learned = view.learn({t: symbolic[t] for t in unknown if t in symbolic})
            return PassResult(_learn_at_sizes(view, names, tensors) or learned)


def _learn_at_sizes(view: GraphView, names: Mapping[str, bool], tensors: Sequence[str]) -> bool:
    known = {t: dims(view, t) for t in tensors}
    open_ones = [t for t, of in known.items() if of is None or any(isinstance(d, str) and d not in names for d in of)]
    # Of nodes that compute with lengths, or multiply activations, as attention does.
    products = (node for node in view.nodes if node.op_type == "MatMul" and not any(map(view.is_weight, node.input)))
    asks = any(node.op_type == "Shape" for node in view.nodes) or any(True for _ in products)
    if not names or not open_ones or not asks:
        return False
    runs = [_sizes(names, run) for run in range(len(_SIZES))]
    seen = [_shapes_at(view, sizes, open_ones) for sizes in runs]
    merged = ((t, _common_type(view, t, [shapes.get(t) for shapes in seen], runs)) for t in open_ones)
    learned = {tensor: kind for tensor, kind in merged if kind is not None}
    pairs = ((kind[1], view.shape(tensor) or (None,) * len(kind[1])) for tensor, kind in learned.items())
    # Such as of frames, of which there is one in short recordings.
    if any(d is not None and before is None for pair in pairs for d, before in zip(*pair, strict=False)):
        long = {name: size if names[name] else _LONG + size for name, size in runs[0].items()}
        there = _shapes_at(view, with_sums(long), list(learned))
        learned = {tensor: _where_same(kind, there.get(tensor)) for tensor, kind in learned.items()}
    return view.learn(learned)


def _shapes_at(view: GraphView, sizes: Mapping[str, int], tensors: Sequence[str]) -> dict[str, Shape]:
    """Return the shapes of tensors where every length has a size."""
    trial = view.copy()
    closed = {name: [sizes[s] if d is None else d for d, s in _dims(view, name)] for name in view.input_names}
    trial.fix_input_shapes(closed)
    FoldConstants()(trial)
    return {tensor: shape for tensor in tensors if (shape := trial.shape(tensor)) is not None}


def _where_same(kind: TensorType, shape: Shape | None) -> TensorType:
    """Return a type without the numbers that a shape contradicts."""
    elem_type, known, symbols = kind
    if shape is None or len(shape) != len(known):
        return kind
    return elem_type, tuple(d if s in (None, d) else None for d, s in zip(known, shape, strict=True)), symbols


def _symbols(view: GraphView) -> dict[str, bool]:
    """Return the symbols of the inputs' dimensions, and whether they are sides of images."""
    symbols: dict[str, bool] = {}
    for name in view.input_names:
        for axis, (size, symbol) in enumerate(_dims(view, name)):
            if size is None:
                # With channels last, the height is the second axis: pooled often, small ones are 1 at all sizes.
                of_image = axis > 0 and len(view.shape(name) or ()) > 3 and "past" not in symbol
                symbols[symbol] = symbols.get(symbol, False) or of_image
    return symbols


def _dims(view: GraphView, name: str) -> Iterator[tuple[int | None, str]]:
    """Yield the dimensions of an input with a symbol each; of several inputs, equal ones may have other names."""
    shape, alone = view.shape(name) or (), len(view.input_names) == 1
    for axis, (size, symbol) in enumerate(zip(shape, [*view.symbols(name), *[""] * len(shape)], strict=False)):
        yield size, symbol if symbol and (alone or not symbol.startswith(UNNAMED)) else _OPEN.format(axis)


def _sizes(names: Mapping[str, bool], run: int) -> dict[str, int]:
    choices = [(_OF_IMAGES if of_image else _SIZES)[run] for of_image in names.values()]
    sizes = {name: choice[i % len(choice)] for i, (name, choice) in enumerate(zip(names, choices, strict=True))}
    return with_sums(sizes)


def _common_type(
    view: GraphView, tensor: str, shapes: list[Shape | None], runs: list[dict[str, int]]
) -> TensorType | None:
    """Return the type of a tensor as far as it is the same at all sizes, None if no part of it is."""
    if any(shape is None or len(shape) != len(shapes[0] or ()) for shape in shapes):
        return None
    shape: list[int | None] = []
    symbols: list[str] = []
    anonymous = any(name.startswith(_OPEN.format("")) for name in runs[0])
    known = list(zip(view.shape(tensor) or (), view.symbols(tensor), strict=False))
    for axis, sizes in enumerate(zip(*(s or () for s in shapes), strict=True)):
        if None in sizes:  # unknown at a size, too
            size, symbol = known[axis] if len(known) == len(shapes[0] or ()) else (None, "")
            shape.append(size)
            symbols.append(symbol)
            continue
        same = sizes[0] if len(set(sizes)) == 1 else None
        names = symbols_of(sizes, runs)
        # Lengths that are equal at all sizes are equal, unless some input has a length that nobody named.
        symbol = names[0] if names else "" if anonymous else "_".join(["length", *map(str, sizes)])
        shape.append(same)
        symbols.append("" if same is not None or symbol.startswith(_OPEN.format("")) else symbol)
    return view.elem_type(tensor), tuple(shape), tuple(symbols)


class FreezeReshapes(Pass):
    """Replace a computed target shape by a constant one.

    ``x.view(x.size(0), -1)`` exports as Shape, Gather, Concat, Reshape. Shape inference with data propagation
    knows the result. Case 1: one unknown dimension is written as -1. Case 2: of several, those with the symbol that
    the input has at the same place are copied from there, written as 0. Case 3: a known dimension that a constant
    target copies by a 0 is written as a number, because the channels at that place of the input need not be those at
    that place of the result. A constant is what lets channels be followed, and changed, through a Reshape.
    """

    def run(self, view: GraphView) -> PassResult:
        """Rewire every such Reshape."""
        frozen: dict[str, NodeProto] = {}
        known: dict[str, TensorType] = {}
        with view.without_assumptions():
            for node in filter(Op("Reshape").fits, view.nodes):
                target = _target_of_sizes(view, node) if view.is_weight(node.input[1]) else _target(view, node)
                if target is not None:
                    result = node.output[0]
                    shape = view.add_weight(f"{result}_shape", np.array(target, np.int64))
                    frozen[node_key(node)] = rewritten(with_input(node, 1, shape), without=["allowzero"])
                    if any(view.symbols(result)):  # which would be lost with the computation
                        known[result] = view.elem_type(result), view.shape(result) or (), view.symbols(result)
            view.learn(known)
            return PassResult(view.substitute(frozen))


def _target(view: GraphView, node: NodeProto) -> list[int] | None:
    """Return the numbers that say the same as a computed target shape, if there are such."""
    shape, length = view.shape(node.output[0]), view.shape(node.input[1])
    if shape is None or 0 in shape or length not in (None, (None,), (len(shape),)):
        return None
    target = [-1 if d is None else d for d in shape]
    if target.count(-1) > 1:
        places = zip(view.symbols(node.input[0]), view.symbols(node.output[0]), strict=False)
        for axis, (before, after) in enumerate(places):
            if before and before == after:
                target[axis] = 0
    return target if target.count(-1) <= 1 else None


def _target_of_sizes(view: GraphView, node: NodeProto) -> list[int] | None:
    """Return a constant target with known dimensions in place of zeros, None if that changes nothing."""
    shape = view.shape(node.output[0])
    if shape is None or attr_int(node, "allowzero", 0):
        return None
    old = [int(d) for d in view.weight(node.input[1])]
    new = [size if d == 0 and size else d for d, size in zip(old, shape, strict=True)]
    return new if new != old else None


#: Operators that broadcast all of their inputs.
_BROADCASTING = frozenset({
    "Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Where", "Equal", "Greater", "Less", "And", "Or",
})  # fmt: skip


class DropExpand(Pass):
    """Let the readers of an Expand read its input if every reader broadcasts.

    It does if another of its inputs has the full shape. Known symbols count as sizes: a free batch equals itself.
    """

    def run(self, view: GraphView) -> PassResult:
        """Rename inputs of the readers."""
        expands = [n for n in view.nodes if n.op_type == "Expand" and n.output[0] not in view.output_names]
        if not expands:
            return PassResult(modified=False)
        renamed: dict[str, str] = {}
        with view.without_assumptions():
            for node in expands:
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


#: From this operator set on the sizes are an input.
_SIZES_AS_INPUT = 13


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
