"""The network as a picture shows it: layers, and what joins their results, in the order of the graph."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from onnx import NodeProto

from onnxfold.channels import FoldGroup
from onnxfold.channels.declarations import Axis
from onnxfold.channels.layers import Layer, layer_of
from onnxfold.graph.nodes import node_key
from onnxfold.graph.view import GraphView
from onnxfold.report import GroupRecord, NetworkNode

#: A picture of more nodes says nothing.
MOST_NODES = 600

#: Sizes are no part of the flow of activations.
_SIZES = frozenset({"Shape", "Size"})


@dataclass(frozen=True)
class DrawnNode:
    """A node of a picture before the fold."""

    node: NetworkNode
    #: Fold groups among the channels that it writes, and how many of these go with a unit of the group.
    channels: tuple[tuple[str, int], ...] = ()

    def fold(self, records: Mapping[str, GroupRecord]) -> NetworkNode:
        """Return the node with its width after the fold."""
        lost = {name: records[name].width - records[name].folded_width for name, _ in self.channels if name in records}
        gone = sum(lost.get(name, 0) * per_unit for name, per_unit in self.channels)
        return replace(self.node, folded_width=self.node.width - gone)


def draw_network(view: GraphView, groups: Iterable[FoldGroup]) -> list[DrawnNode]:
    """Return the nodes of a picture of a graph; none where there are too many, or no layer."""
    channels = _channels(groups)
    drawn_nodes: list[DrawnNode] = []
    origins: dict[str, tuple[int, ...]] = {}  # of a tensor: the nodes of the picture that it comes from
    for node in view.nodes:
        reads = tuple(sorted({index for name in node.input for index in origins.get(name, ())}))
        layer = layer_of(view, node)
        if node.op_type in _SIZES:
            reads = ()
        elif layer is not None or len(reads) > 1:
            drawn_nodes.append(_draw_node(view, node, layer, reads, channels))
            reads = (len(drawn_nodes) - 1,)
        if len(drawn_nodes) > MOST_NODES:
            return []
        origins |= dict.fromkeys(node.output, reads)
    return drawn_nodes if any(drawn.node.is_layer for drawn in drawn_nodes) else []


def _channels(groups: Iterable[FoldGroup]) -> dict[Axis, list[tuple[str, int]]]:
    """Return, for every axis of a weight, the groups that lie on it, and how many of its entries go with a unit."""
    by_axis: dict[Axis, list[tuple[str, int]]] = {}
    for group in groups:
        for axis, positions in {member.axis: member.positions for member in group.members}.items():
            by_axis.setdefault(axis, []).append((group.name, positions.shape[1]))
    return by_axis


def _draw_node(
    view: GraphView,
    node: NodeProto,
    layer: Layer | None,
    reads: tuple[int, ...],
    channels: Mapping[Axis, list[tuple[str, int]]],
) -> DrawnNode:
    name = node.name or node_key(node)
    if layer is None:
        return DrawnNode(NetworkNode(name, node.op_type, reads))
    width, inside = layer.width(view), channels.get(layer.rows, [])
    drawn = NetworkNode(name, node.op_type, reads, width, width, inside[0][0] if inside else "")
    return DrawnNode(drawn, tuple(inside))
