"""The kind of answer that an output gives, from the graph: class scores or numbers, boxes, an embedding, and so on.

Layers say most: scores end in a softmax or in one linear layer on pooled features, embeddings in a normalisation or in
a bottleneck, images in as many channels as the input has. Names decide only where layers leave it open.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from onnx import NodeProto

from onnxfold.graph.nodes import attr_ints
from onnxfold.graph.patterns import behind
from onnxfold.graph.tensors import Shape
from onnxfold.graph.view import GraphView
from onnxfold.inputs.tokens.interface import token_interface
from onnxfold.passes.normalize.constants import InlineFunctions


class AnswerKind(StrEnum):
    """Kinds of answers."""

    CLASSES = "classes"
    DENSE = "dense"
    DETECTIONS = "detections"
    LISTED = "listed detections"
    EMBEDDING = "embedding"
    TOKENS = "tokens"
    NUMBERED = "numbered"
    REGRESSION = "regression"


#: Nodes that move or store values, and do not change them.
_MOVES = frozenset({
    "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Cast", "Dropout", "QuantizeLinear",
    "DequantizeLinear", "Slice", "Split", "Resize", "Upsample",
})  # fmt: skip
_NUMBERED = frozenset({"ArgMax", "ArgMin"})
_SOFTMAX = frozenset({"Softmax", "LogSoftmax", "Hardmax"})
_LINEAR = frozenset({"Gemm", "MatMul", "Conv", "ConvTranspose", "MatMulInteger", "ConvInteger", "QLinearMatMul"})
_POOL = frozenset({"GlobalAveragePool", "GlobalMaxPool", "AveragePool", "MaxPool", "ReduceMean", "ReduceMax"})
_NORM = frozenset({
    "BatchNormalization", "LayerNormalization", "LpNormalization", "InstanceNormalization", "Relu", "PRelu",
})  # fmt: skip
_LENGTH = frozenset({"ReduceL2", "Sqrt", "Pow", "ReduceSumSquare", "Clip", "Max", "Add", "Expand", "ReduceSum"})
_NUMBERS = re.compile(
    r"action|box|bbox|coord|landmark|offset|delta|flow|depth|disp|pose|keypoint|regress|_reg\b", re.IGNORECASE
)
_VECTORS = re.compile(r"embed|feature|hidden|pooler|descriptor", re.IGNORECASE)
_SCORES = re.compile(r"logits|prob|softmax|scores?\b|class", re.IGNORECASE)
#: Positions of detectors are many, and a box and a score take this many columns.
_MANY, _BOX = 64, 5
#: Rank of what stands along a line: a map, or a state of past frames, has more.
LINE = 2


@dataclass(frozen=True)
class _End:
    """The last node of an output that computes, and the output's name and shape."""

    name: str
    shape: tuple[int, ...]
    node: NodeProto | None

    @property
    def op(self) -> str:
        return "" if self.node is None else self.node.op_type

    @property
    def is_linear(self) -> bool:
        return self.op in _LINEAR


def answer_kinds(view: GraphView | None, shapes: Mapping[str, tuple[int, ...]], samples: int) -> dict[str, AnswerKind]:
    """Return the kind of every output of a network."""
    if view is None:
        return {name: _kind_of_shape(name, shape) for name, shape in shapes.items()}
    if view.model.functions:
        view = view.copy()
        InlineFunctions()(view)
    ends = [_end(view, name, shape) for name, shape in shapes.items()]
    tokens = token_interface(view) is not None
    softmax = any(end.op in _SOFTMAX for end in ends)
    scored = {behind(view, end.node.input[0], _MOVES) for end in ends if end.node and end.op in _SOFTMAX | _NUMBERED}
    inputs = [view.shape(name) or () for name in view.input_names]
    # An output of the shape of an input beside others is a state, for the next run.
    states = {shape[1:] for shape in inputs if len(inputs) > 1 and len(shape) > LINE}
    states &= {end.shape[1:] for end in ends}
    answers = [end for end in ends if end.shape[1:] not in states]
    has_image = any(len(shape) == 4 and shape[1:] not in states for shape in inputs)
    detects = not tokens and _detects(view, answers, samples, has_image=has_image)
    with view.without_assumptions():
        declared = {name: view.shape(name) or () for name in shapes}
    kinds = {}
    for end in ends:
        rank = len(end.shape)
        is_vector = rank <= 2 or sum(d != 1 for d in end.shape[1:]) <= 1  # or one number, per sample
        if end.op in _NUMBERED:
            kinds[end.name] = AnswerKind.NUMBERED
        elif rank == 3 and end.op in _SOFTMAX and len(answers) == 1 and not tokens:  # characters along a line
            kinds[end.name] = AnswerKind.TOKENS
        elif detects and rank >= 2 and (not is_vector or end.shape[0] != samples or _stands_at_positions(end)):
            kinds[end.name] = AnswerKind.DETECTIONS
        elif tokens and rank == 3 and (_SCORES.search(end.name) or end.op in _SOFTMAX or end.is_linear):
            kinds[end.name] = AnswerKind.TOKENS
        elif rank == LINE and end.shape[1] > 1 and behind(view, end.name, _MOVES) in scored:
            kinds[end.name] = AnswerKind.CLASSES
        elif is_vector:
            along = not tokens and _is_along_a_length(end, declared[end.name])
            kinds[end.name] = AnswerKind.REGRESSION if along else _kind_of_vector(view, end, softmax=softmax)
        elif rank == 4:
            kinds[end.name] = _kind_of_map(view, end, len({_channels(e.shape) for e in ends if len(e.shape) == 4}) > 1)
        else:
            kinds[end.name] = AnswerKind.REGRESSION
    return kinds


def _stands_at_positions(end: _End) -> bool:
    """Whether an output holds one number for each of many positions, as detectors do beside boxes."""
    return len(end.shape) > 2 and max(end.shape[1:]) >= _MANY


def _is_along_a_length(end: _End, known: Shape) -> bool:
    """Whether the numbers of a vector lie along a length that an input decides, as of frames: they are no classes."""
    long = [axis for axis, size in enumerate(end.shape) if axis and size != 1]
    return len(known) == len(end.shape) and len(long) == 1 and known[long[0]] is None


def _kind_of_shape(name: str, shape: tuple[int, ...]) -> AnswerKind:
    if len(shape) == 3 and _SCORES.search(name):
        return AnswerKind.TOKENS
    return AnswerKind.CLASSES if len(shape) == 2 and shape[1] > 1 else AnswerKind.REGRESSION


def _kind_of_vector(view: GraphView, end: _End, *, softmax: bool) -> AnswerKind:
    """Return the kind of an output with one vector per sample."""
    if end.op in _SOFTMAX:
        return AnswerKind.CLASSES
    if math.prod(end.shape[1:]) == 1:
        return AnswerKind.REGRESSION
    if _VECTORS.search(end.name) or end.op in _NORM | _POOL or _is_normalised(view, end.node):
        return AnswerKind.EMBEDDING
    if _NUMBERS.search(end.name) or softmax:
        return AnswerKind.REGRESSION
    if not end.is_linear:
        are_scores = _SCORES.search(end.name) and end.op not in ("Sigmoid", "Tanh")
        return AnswerKind.CLASSES if are_scores else AnswerKind.REGRESSION
    assert end.node is not None
    if max(attr_ints(end.node, "kernel_shape"), default=1) > 1:  # a map is read whole: landmarks
        return AnswerKind.REGRESSION
    return AnswerKind.EMBEDDING if _end(view, end.node.input[0]).is_linear else AnswerKind.CLASSES


def _kind_of_map(view: GraphView, end: _End, differ: bool) -> AnswerKind:
    """Return the kind of an output with a vector at every position of an image; others of other lengths may differ."""
    channels = _channels(end.shape)
    shapes = [view.shape(name) or () for name in view.input_names]
    images = {_channels(shape) for shape in shapes if len(shape) == 4}
    if end.op in _SOFTMAX or (end.op == "Sigmoid" and channels == 1):
        return AnswerKind.DENSE
    is_of_sound = all(0 < len(shape) < 3 for shape in shapes)  # vectors of pieces of a recording
    if not end.is_linear or is_of_sound or channels == 1 or channels in images or _NUMBERS.search(end.name):
        return AnswerKind.REGRESSION
    return AnswerKind.REGRESSION if differ or _VECTORS.search(end.name) else AnswerKind.DENSE


def _detects(view: GraphView, ends: Sequence[_End], samples: int, *, has_image: bool) -> bool:
    """Whether outputs hold boxes and scores of many positions: of an image, side by side or in one."""
    if any(node.op_type == "NonMaxSuppression" for node in view.nodes):
        return True
    if not has_image:
        return False
    for shape in (end.shape for end in ends):
        if len(shape) == 2 and shape[0] >= _MANY and shape[0] % max(samples, 1) == 0 and shape[0] != samples:
            return True
        if len(shape) == 3 and max(shape[1:]) >= _MANY and min(shape[1:]) >= _BOX and shape[1] != shape[2]:
            return True
    if len(ends) < 2:
        return False
    # Landmarks of a face, (1, 1, 1404), are no map.
    heads = [e.shape for e in ends if len(e.shape) in (4, 5) and e.is_linear and min(e.shape[-2:]) > 1]
    several_strides = len({s[1] for s in heads}) == 1 and len({s[-2:] for s in heads}) > 1
    return several_strides or any(len(end.shape) == 3 and end.shape[2] == 4 for end in ends)


def _end(view: GraphView, tensor: str, shape: tuple[int, ...] = ()) -> _End:
    """Return the node that computes a tensor, behind nodes that move it and constants that are added to it."""
    end = _End(tensor, shape, view.producer(behind(view, tensor, _MOVES)))
    added = end.node.input if end.node is not None and end.op == "Add" else ()
    live = [name for name in added if not _is_constant(view, name)]
    if len(live) == 1:
        # A scale of integer products may stand in between.
        before = replace(end, node=view.producer(behind(view, live[0], _MOVES | {"Mul"})))
        return before if before.is_linear else end
    return end


def _is_constant(view: GraphView, tensor: str) -> bool:
    tensor = behind(view, tensor, _MOVES)
    made = view.producer(tensor)
    return view.is_weight(tensor) or (made is not None and made.op_type == "Constant")


def _is_normalised(view: GraphView, node: NodeProto | None) -> bool:
    """Whether a vector is divided by its own length."""
    if node is None or node.op_type not in ("Div", "Mul"):
        return False
    tensor = node.input[1]
    for _ in range(6):
        made = view.producer(tensor)
        if made is None or made.op_type not in _LENGTH | _MOVES | {"Reciprocal", "Div", "Mul"}:
            return False
        if made.op_type in ("ReduceL2", "ReduceSumSquare", "ReduceSum"):
            return True
        tensor = made.input[0]
    return False


def _channels(shape: Sequence[int | None]) -> int | None:
    """Return the channels of an image: of its second and last axis, the shorter."""
    return min((d for d in (shape[1], shape[-1]) if d is not None), default=None)
