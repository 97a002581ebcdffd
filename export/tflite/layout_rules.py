"""Layout rules: the layouts in which an operator reads and writes its tensors.

A rule says which tensors of a node must share a layout (:meth:`LayoutRule.ties`), and, given a layout for every tensor,
in which one the converter will really ask for each of them (:meth:`LayoutRule.demands`). Where the two differ a
TRANSPOSE is paid, so a wrong rule costs time, never correctness.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from onnx import NodeProto

from onnxfold.export.tflite.layout import Layout, Shape, channels_last, flattened, keeps_order, plain
from onnxfold.graph.node_reader import NodeReader
from onnxfold.graph.view import GraphView

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

    def ties(self, op: NodeShapes) -> list[str]:
        """Return the tensors that should share a layout."""
        return []

    def offers(self, op: NodeShapes) -> Iterable[tuple[str, Layout]]:
        """Yield layouts of tensors that the operator can read or write beside the usual two."""
        return ()

    def demands(self, op: NodeShapes, assigned: Layouts) -> Demands:
        """Yield each tensor with the layout that the converter asks for."""
        return [(t, plain(op.rank(t))) for t in (*op.reads, *op.writes)]


class ChannelsLast(LayoutRule):
    """Channels last for the first input and the output: convolutions, pools and other operators on images."""

    def demands(self, op: NodeShapes, assigned: Layouts) -> Demands:
        """Only the data has channels."""
        data = op.node.input[0]
        for tensor in (*op.reads, *op.writes):
            is_data = tensor == data or tensor in op.writes
            yield tensor, channels_last(op.rank(tensor)) if is_data else plain(op.rank(tensor))


@dataclass(frozen=True)
class Follow(LayoutRule):
    """Any layout, the same for all tensors of the output's rank: elementwise operators, Concat, Pad, Slice."""

    #: Whether flattened feature maps may stay in TFLite's order: positions of an axis are not told apart.
    elementwise: bool = False

    def ties(self, op: NodeShapes) -> list[str]:
        """Tie everything of the output's rank."""
        rank = op.rank(op.writes[0])
        return [t for t in (*op.reads, *op.writes) if op.rank(t) == rank]

    def demands(self, op: NodeShapes, assigned: Layouts) -> Demands:
        """Ask for the layout of the first output."""
        layout = assigned[op.writes[0]]
        if layout.block and not self.elementwise:
            layout = plain(2)
        for tensor in (*op.reads, *op.writes):
            rank = op.rank(tensor)
            yield tensor, layout if rank == len(layout.perm) else plain(rank)


ELEMENTWISE = Follow(elementwise=True)


class Reordering(LayoutRule):
    """Transpose: the same elements in the same order, under other names of the axes."""

    def demands(self, op: NodeShapes, assigned: Layouts) -> Demands:
        """Ask for the input as it is, and for the output in the layout in which nothing moves."""
        source, result = op.reads[0], op.writes[0]
        source_layout = plain(op.rank(source)) if assigned[source].block else assigned[source]
        return [
            (source, source_layout),
            (result, permuted_layout(source_layout, op.integers("perm", reversed(range(op.rank(source)))))),
        ]


class Reshaping(LayoutRule):
    """Reshape, Flatten, Squeeze, Unsqueeze: as it is where elements keep their order, else by way of ONNX's order."""

    def offers(self, op: NodeShapes) -> Iterable[tuple[str, Layout]]:
        """Offer (N, C*H*W) in TFLite's order where it is a flattened feature map."""
        for image_tensor, flat_tensor in ((op.reads[0], op.writes[0]), (op.writes[0], op.reads[0])):
            image, flat = op.shapes[image_tensor], op.shapes[flat_tensor]
            if (
                len(image) > 2
                and len(flat) == 2
                and keeps_order(image, channels_last(len(image)), flat, flattened(image[1:]))
            ):
                yield flat_tensor, flattened(image[1:])

    def demands(self, op: NodeShapes, assigned: Layouts) -> Demands:
        """Ask for what is assigned if that is a mere RESHAPE."""
        source, result = op.reads[0], op.writes[0]
        source_layout, result_layout = assigned[source], assigned[result]
        if keeps_order(op.shapes[source], source_layout, op.shapes[result], result_layout):
            return [(source, source_layout), (result, result_layout)]
        return [(source, plain(len(source_layout.perm))), (result, plain(len(result_layout.perm)))]


@dataclass(frozen=True)
class LastAxis(LayoutRule):
    """An operator whose TFLite kernel works along the last axis: any layout that has the node's axis there."""

    default: int = -1  # the axis of a node without the attribute

    def ties(self, op: NodeShapes) -> list[str]:
        """Input and output have the same layout."""
        return [op.reads[0], op.writes[0]]

    def demands(self, op: NodeShapes, assigned: Layouts) -> Demands:
        """Ask for the assigned layout if the axis is last in it."""
        layout = layout_with_last(assigned[op.writes[0]], op.integer("axis", self.default))
        return [(op.reads[0], layout), (op.writes[0], layout)]


class DenseProduct(LayoutRule):
    """A matrix product with constant weights: flattened feature maps may stay in TFLite's order."""

    def demands(self, op: NodeShapes, assigned: Layouts) -> Demands:
        """Ask for ONNX's order but for flattened maps on either side of a constant matrix."""
        constant = len(op.reads) == 1 and op.reads[0] == op.node.input[0] and not op.integer("transA", 0)
        for tensor in (*op.reads, *op.writes):
            layout = assigned[tensor]
            yield tensor, layout if constant and layout.block else plain(op.rank(tensor))


@dataclass(frozen=True)
class Reducing(LayoutRule):
    """A reduction works along any axes; without them, the others stay in the order of the input's layout."""

    axes: Callable[[NodeShapes], tuple[int, ...]]

    def ties(self, op: NodeShapes) -> list[str]:
        """Tie the ranks that stay."""
        same = op.rank(op.reads[0]) == op.rank(op.writes[0])
        return [op.reads[0], op.writes[0]] if same else []

    def demands(self, op: NodeShapes, assigned: Layouts) -> Demands:
        """Ask for the input as it is, and for the output in the order that results."""
        source, result = op.reads[0], op.writes[0]
        source_layout = plain(op.rank(source)) if assigned[source].block else assigned[source]
        same = op.rank(source) == op.rank(result)
        return [
            (source, source_layout),
            (result, source_layout if same else remaining_layout(source_layout, self.axes(op))),
        ]


def layout_with_last(layout: Layout, axis: int) -> Layout:
    """Return the layout if an ONNX axis is its last one, else the plain or channels-last one that has it there."""
    rank = len(layout.perm)
    usable = [k for k in (layout, plain(rank), channels_last(rank)) if not k.block and k.perm[-1] == axis % rank]
    return usable[0] if usable else plain(rank)


def remaining_layout(layout: Layout, axes: Iterable[int]) -> Layout:
    """Return the layout that is left when ONNX axes are removed."""
    gone = {a % len(layout.perm) for a in axes}
    kept = [p for p in layout.perm if p not in gone]
    return Layout(tuple(sorted(kept).index(p) for p in kept))


def permuted_layout(layout: Layout, perm: Iterable[int]) -> Layout:
    """Return the layout that a tensor has for a Transpose's result: ONNX axis i of it is axis ``perm[i]``."""
    order = list(perm)
    return Layout(tuple(order.index(p) for p in layout.perm))
