"""The order of an ONNX tensor's axes in its TFLite tensor.

TFLite's image operators want channels last (N, H, W, C), ONNX has them behind the batch (N, C, H, W). A
:class:`Layout` says which ONNX axis each TFLite axis holds. A flattened feature map, whose elements TFLite has in
another order than ONNX, is a layout too: then a layer that reads it permutes its weights once, instead of the
activations at every run.

A layout rule says in which layout a converter reads and writes (:meth:`LayoutRule.own`), which tensors of a node must
share a layout (:meth:`LayoutRule.ties`), and, given a layout for every tensor, in which one the converter will really
ask for each of them (:meth:`LayoutRule.demands`). Where the two differ a TRANSPOSE is paid, so a wrong rule costs time,
never correctness.
"""

import math
import operator
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

import numpy as np
from onnx import NodeProto

from onnxfold.graph.registry import NodeReader
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView

Shape = tuple[int, ...]

#: Multiplies dynamic dimensions when sizes are compared, so that they only ever match each other.
_DYNAMIC = 1_000_003


class Dynamic(int):
    """A dimension that is only known at run time; its value is its size for a batch of one."""

    __slots__ = ()


@dataclass(frozen=True)
class Layout:
    """An order of axes, and of what the last axis enumerates."""

    perm: tuple[int, ...]  # TFLite axis i holds ONNX axis ``perm[i]``
    block: tuple[int, ...] = ()  # (C, H, W) if the last axis is a flattened feature map with channels last, else empty

    @property
    def unflattened(self) -> "Layout":
        """The layout, but ONNX's own order of a flattened feature map."""
        return plain(2) if self.block else self

    def of_rank(self, rank: int) -> "Layout":
        """Return the layout for a tensor of its rank, ONNX's own for others."""
        return self if rank == len(self.perm) else plain(rank)

    def shape(self, shape: Shape) -> Shape:
        """Return the TFLite shape of a tensor of an ONNX shape."""
        return tuple(shape[p] for p in self.perm)

    def axis(self, axis: int) -> int:
        """Return the TFLite position of an ONNX axis, which may be negative."""
        return self.perm.index(axis % len(self.perm))

    def order(self) -> Array:
        """Return, for each position of the flattened last axis, the ONNX position that it holds."""
        return np.arange(math.prod(self.block)).reshape(self.block).transpose(*range(1, len(self.block)), 0).reshape(-1)

    def values(self, values: Array) -> Array:
        """Bring a constant of full rank from ONNX's order into this one; broadcast axes have size 1."""
        if self.block and values.shape[-1] > 1:
            values = values[..., self.order()]
        return values.transpose(self.perm)

    def name(self) -> str:
        """Return the usual letters, e.g. ``NHWC``."""
        rank = len(self.perm)
        letters = {3: "NCW", 4: "NCHW", 5: "NCDHW"}.get(rank, "")
        if self == plain(rank):
            return letters or "ONNX's order"
        return "".join(letters[p] for p in self.perm) if letters and not self.block else f"axes {list(self.perm)}"


def plain(rank: int) -> Layout:
    """Return ONNX's own order."""
    return Layout(tuple(range(rank)))


def channels_last(rank: int) -> Layout:
    """Return (N, spatial..., C); ONNX's own order below rank 3."""
    return Layout((0, *range(2, rank), 1)) if rank > 2 else plain(rank)


def keeps_order(before: Shape, from_layout: Layout, after: Shape, to_layout: Layout) -> bool:
    """Whether a reshape between two ONNX shapes is one between the TFLite tensors: elements keep their order.

    Dimensions are matched in blocks of equal size, (C) with (g, C/g) or (H, W) with (H*W). The order is kept if both
    layouts have the blocks in the same sequence, and the axes of each block side by side and ascending.
    """
    sizes, from_axes = _unfold(before, from_layout)
    new_sizes, to_axes = _unfold(after, to_layout)
    if math.prod(sizes) != math.prod(new_sizes):
        return False
    cuts = sorted({*accumulate(sizes, operator.mul)} & {*accumulate(new_sizes, operator.mul)})
    sequence = _sequence(sizes, from_axes, cuts)
    return sequence is not None and sequence == _sequence(new_sizes, to_axes, cuts)


def _unfold(shape: Shape, layout: Layout) -> tuple[list[int], list[int]]:
    """Return sizes (dynamic ones marked) and axes in TFLite's order, a flattened block as the axes it came from."""
    sizes = [int(d) * _DYNAMIC if isinstance(d, Dynamic) else int(d) for d in shape]
    if not layout.block:
        return sizes, list(layout.perm)
    last = len(shape) - 1
    return [*sizes[:-1], *layout.block], [*range(last), *range(last + 1, last + len(layout.block)), last]


def _sequence(sizes: list[int], axes: list[int], cuts: list[int]) -> list[int] | None:
    """Return the blocks in the order of the axes that are longer than 1, None if one is torn or turned.

    A block ends where both shapes have the same product of sizes so far.
    """
    blocks = [bisect_left(cuts, product) for product in accumulate(sizes, operator.mul)]
    placed = [(blocks[axis], axis) for axis in axes if sizes[axis] != 1]
    order = list(dict.fromkeys(block for block, _ in placed))
    return order if placed == sorted(placed, key=lambda pair: (order.index(pair[0]), pair[1])) else None


Layouts = Mapping[str, Layout]
Demands = Iterable[tuple[str, Layout]]


class NodeShapes(NodeReader):
    """A node with the ONNX shapes of its activations."""

    def __init__(self, view: GraphView, node: NodeProto, shapes: Mapping[str, Shape]) -> None:
        super().__init__(view, node)
        self.shapes = shapes

    @property
    def reads(self) -> list[str]:
        """Inputs that are activations of known shape, each once."""
        return [t for t in dict.fromkeys(self.node.input) if t in self.shapes]

    @property
    def writes(self) -> list[str]:
        """Outputs that are not left out."""
        return [t for t in self.node.output if t in self.shapes]

    def rank(self, tensor: str) -> int:
        """Return a tensor's number of dimensions."""
        return len(self.shapes[tensor])


class LayoutRule:
    """ONNX's own order for everything: the default rule."""

    #: Whether the planned layout of the output decides in which one the operator reads and writes.
    follows: ClassVar[bool] = False

    def own(self, op: NodeReader, layout: Layout) -> Layout:
        """Return the layout for tensors of the output's rank, from the output's planned one, or from ONNX's."""
        return plain(len(layout.perm))

    def ties(self, op: NodeShapes) -> list[str]:
        """Return the tensors that should share a layout."""
        return []

    def offers(self, op: NodeShapes) -> Iterable[tuple[str, Layout]]:
        """Yield layouts of tensors that the operator can read or write beside the usual two."""
        return ()

    def demands(self, op: NodeShapes, assigned: Layouts) -> Demands:
        """Return each tensor with the layout that the converter asks for."""
        layout = self.own(op, assigned[op.writes[0]])
        return [(t, layout.of_rank(op.rank(t))) for t in (*op.reads, *op.writes)]


class ChannelsLast(LayoutRule):
    """Channels last for the first input and the output: convolutions, pools and other operators on images."""

    def own(self, op: NodeReader, layout: Layout) -> Layout:
        """Channels last."""
        return channels_last(len(layout.perm))


class SameRank(LayoutRule):
    """One layout for all tensors of the output's rank."""

    def ties(self, op: NodeShapes) -> list[str]:
        """Tie everything of the output's rank."""
        rank = op.rank(op.writes[0])
        return [t for t in (*op.reads, *op.writes) if op.rank(t) == rank]


@dataclass(frozen=True)
class Follow(SameRank):
    """Any layout, the same for all tensors of the output's rank: elementwise operators, Concat, Pad, Slice."""

    #: Whether flattened feature maps may stay in TFLite's order: positions of an axis are not told apart.
    elementwise: bool = False
    follows: ClassVar[bool] = True

    def own(self, op: NodeReader, layout: Layout) -> Layout:
        """As it is planned."""
        return layout if self.elementwise else layout.unflattened


ELEMENTWISE = Follow(elementwise=True)


class Reordering(LayoutRule):
    """Transpose: the same elements in the same order, under other names of the axes."""

    def demands(self, op: NodeShapes, assigned: Layouts) -> Demands:
        """Ask for the input as it is, and for the output in the layout in which nothing moves."""
        source, result = op.reads[0], op.writes[0]
        source_layout = assigned[source].unflattened
        perm = op.integers("perm", reversed(range(op.rank(source))))
        return [(source, source_layout), (result, permuted_layout(source_layout, perm))]


class Reshaping(LayoutRule):
    """Reshape, Flatten, Squeeze, Unsqueeze: as it is where elements keep their order, else by way of ONNX's order."""

    def offers(self, op: NodeShapes) -> Iterable[tuple[str, Layout]]:
        """Offer (N, C*H*W) in TFLite's order where it is a flattened feature map."""
        for image_tensor, flat_tensor in ((op.reads[0], op.writes[0]), (op.writes[0], op.reads[0])):
            image, flat = op.shapes[image_tensor], op.shapes[flat_tensor]
            layout = Layout((0, 1), image[1:])
            if len(image) > 2 == len(flat) and keeps_order(image, channels_last(len(image)), flat, layout):
                yield flat_tensor, layout

    def demands(self, op: NodeShapes, assigned: Layouts) -> Demands:
        """Ask for what is assigned if that is a mere RESHAPE."""
        source, result = op.reads[0], op.writes[0]
        source_layout, result_layout = assigned[source], assigned[result]
        if keeps_order(op.shapes[source], source_layout, op.shapes[result], result_layout):
            return [(source, source_layout), (result, result_layout)]
        return [(source, plain(len(source_layout.perm))), (result, plain(len(result_layout.perm)))]


class LastAxis(SameRank):
    """An operator whose TFLite kernel works along the last axis: any layout that has the node's axis there."""

    follows: ClassVar[bool] = True

    def own(self, op: NodeReader, layout: Layout) -> Layout:
        """Return the layout if the node's axis is its last one, else the plain or channels-last one where it is."""
        axis, rank = op.integer("axis", -1), len(layout.perm)
        usable = [k for k in (layout, plain(rank), channels_last(rank)) if not k.block and k.perm[-1] == axis % rank]
        return usable[0] if usable else plain(rank)


class DenseProduct(LayoutRule):
    """A matrix product with constant weights: flattened feature maps may stay in TFLite's order."""

    def demands(self, op: NodeShapes, assigned: Layouts) -> Demands:
        """Ask for ONNX's order but for flattened maps on either side of a constant matrix."""
        constant = len(op.reads) == 1 and op.reads[0] == op.node.input[0] and not op.integer("transA", 0)
        for tensor in (*op.reads, *op.writes):
            layout = assigned[tensor]
            yield tensor, layout if constant and layout.block else plain(op.rank(tensor))


@dataclass(frozen=True)
class Reducing(SameRank):
    """A reduction works along any axes; without them, the others stay in the order of the input's layout."""

    axes: Callable[[NodeShapes], tuple[int, ...]]

    def demands(self, op: NodeShapes, assigned: Layouts) -> Demands:
        """Ask for the input as it is, and for the output in the order that results."""
        source, result = op.reads[0], op.writes[0]
        source_layout = assigned[source].unflattened
        same = op.rank(source) == op.rank(result)
        result_layout = source_layout if same else remaining_layout(source_layout, self.axes(op))
        return [(source, source_layout), (result, result_layout)]


def remaining_layout(layout: Layout, axes: Iterable[int]) -> Layout:
    """Return the layout that is left when ONNX axes are removed."""
    gone = {a % len(layout.perm) for a in axes}
    kept = [p for p in layout.perm if p not in gone]
    return Layout(tuple(sorted(kept).index(p) for p in kept))


def permuted_layout(layout: Layout, perm: Iterable[int]) -> Layout:
    """Return the layout that a tensor has for a Transpose's result: ONNX axis i of it is axis ``perm[i]``."""
    order = list(perm)
    return Layout(tuple(order.index(p) for p in layout.perm))
