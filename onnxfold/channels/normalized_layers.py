"""Layers and BatchNormalizations of a fold group, and which of them may be rescaled against each other."""

from dataclasses import dataclass

from onnx import NodeProto

from onnxfold.channels.declarations import Role
from onnxfold.channels.group import FoldGroup, Member
from onnxfold.channels.layers import Layer, batch_norm, layer_of
from onnxfold.graph.nodes import node_key
from onnxfold.graph.patterns import only_reader
from onnxfold.graph.view import GraphView


@dataclass(frozen=True, eq=False)
class GroupLayer:
    """A layer whose output channels belong to a group."""

    node: NodeProto  # the operator that holds the rows
    rows: Member  # its weight's axis in the group
    bias: Member | None
    output: str  # the tensor after the bias has been added
    #: The BatchNormalization that is the only reader of `output`, if there is one, nobody else uses the weight or the
    #: bias, and the bias is one number per row: rows and statistics may then be rescaled against each other.
    normalization: NodeProto | None


def group_layers(view: GraphView, group: FoldGroup) -> list[GroupLayer]:
    """Return the layers that produce a group's channels, in the order of the graph."""
    layers = []
    for member in group.with_role(Role.PRODUCER):
        for use in member.uses:
            node = view.producer(use.node)
            layer = layer_of(view, node) if node is not None else None
            if layer is not None:
                layers.append(_in_group(view, group, layer, member))
    return layers


def _in_group(view: GraphView, group: FoldGroup, layer: Layer, rows: Member) -> GroupLayer:
    biases = group.by_node(Role.BIAS).get(node_key(layer.last), ())
    bias = next((m for m in biases if m.axis.tensor == layer.bias), None)
    reader = only_reader(view, layer.output)
    if not _may_rescale(view, layer, rows, bias) or not _normalizes(view, group, reader, rows):
        reader = None
    return GroupLayer(layer.node, rows, bias, layer.output, reader)


def _may_rescale(view: GraphView, layer: Layer, rows: Member, bias: Member | None) -> bool:
    """Whether rows and bias are this layer's own, the bias times one, and all that is added."""
    if not layer.is_plain or len(rows.uses) > 1 or len(view.consumers(rows.axis.tensor)) > 1:
        return False
    if not layer.bias:
        return True
    if layer.has_own_bias and layer.operator.bias_factor != 1.0:
        return False
    return bias is not None and bias.positions.shape == rows.positions.shape and len(view.consumers(layer.bias)) == 1


def _normalizes(view: GraphView, group: FoldGroup, reader: NodeProto | None, rows: Member) -> bool:
    """Whether a node is a BatchNormalization of the group with one entry per row."""
    if reader is None or batch_norm(view, reader) is None:
        return False
    scales = group.by_node(Role.SCALE).get(reader.output[0], ())
    return any(m.positions.shape == rows.positions.shape and len(m.uses) == 1 for m in scales)


@dataclass(frozen=True, eq=False)
class Normalization:
    """A BatchNormalization of a group: its four parameters and, if it has exactly one, the layer in front of it."""

    node: NodeProto
    epsilon: float
    scale: Member
    shift: Member
    mean: Member
    variance: Member
    layer: GroupLayer | None


def normalizations(view: GraphView, group: FoldGroup) -> list[Normalization]:
    """Return the BatchNormalizations of a group whose parameters are not shared with another node."""
    in_front: dict[str, GroupLayer] = {}
    for layer in group_layers(view, group):
        if layer.normalization is not None:
            in_front[layer.normalization.output[0]] = layer
    members: dict[str, dict[Role, Member]] = {}
    for role in (Role.SCALE, Role.SHIFT, Role.MEAN, Role.VARIANCE):
        for member in group.with_role(role):
            for use in member.uses:
                members.setdefault(use.node, {})[role] = member
    norms = []
    for output, m in members.items():
        node = view.producer(output)
        norm = batch_norm(view, node) if node is not None else None
        if node is not None and norm is not None and len(m) == 4:
            parameters = m[Role.SCALE], m[Role.SHIFT], m[Role.MEAN], m[Role.VARIANCE]
            norms.append(Normalization(node, norm.epsilon, *parameters, in_front.get(output)))
    return norms
