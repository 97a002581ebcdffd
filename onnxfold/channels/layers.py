"""Layers: the operator that computes channels, its weight, its bias, and the BatchNormalization behind, as one thing.

What an operator computes is declared by its channel rule (:mod:`onnxfold.channels.declarations`); nothing here knows an
operator by its name. A layer is a linear operator with a constant weight; its bias is an input of the operator, or a
vector that the node behind adds.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from onnx import NodeProto

from onnxfold.channels import rules  # noqa: F401  (registers the rules)
from onnxfold.channels.context import NodeContext, Result, find_rule
from onnxfold.channels.declarations import Axis, BatchNorm, Computation, Linear, Role, Shift
from onnxfold.channels.group import FoldGroup, Member
from onnxfold.graph.nodes import node_key
from onnxfold.graph.patterns import only_reader
from onnxfold.graph.view import GraphView


def computation(view: GraphView, node: NodeProto | None) -> Computation | None:
    """Return the computation of a node, as its channel rule declares it; None where it declares none or is None."""
    if node is None:
        return None
    rule = find_rule(node.domain, node.op_type, view.opset(node.domain))
    return None if rule is None or rule.computes is None else rule.computes(NodeContext(view, node, set()))


def result_of(view: GraphView, node: NodeProto) -> Result:
    """Return where a node's first result may lie in memory, as its channel rule declares it."""
    rule = find_rule(node.domain, node.op_type, view.opset(node.domain))
    return Result.NEW if rule is None else rule.result


def linear(view: GraphView, node: NodeProto | None) -> Linear | None:
    """Return the computation of a linear operator, None for other nodes."""
    operator = computation(view, node)
    return operator if isinstance(operator, Linear) else None


def batch_norm(view: GraphView, node: NodeProto | None) -> BatchNorm | None:
    """Return the computation of a BatchNormalization, None for other nodes."""
    norm = computation(view, node)
    return norm if isinstance(norm, BatchNorm) else None


def own_statistics(view: GraphView, node: NodeProto) -> BatchNorm | None:
    """Return a BatchNormalization with constant statistics that no other node shares; None for other nodes."""
    norm = batch_norm(view, node)
    statistics = () if norm is None else (norm.mean, norm.variance)
    return norm if all(view.is_weight(name) and len(view.consumers(name)) == 1 for name in statistics) else None


def holds_statistics(view: GraphView) -> bool:
    """Whether a graph has statistics of the data that it was trained on."""
    return any(own_statistics(view, node) is not None for node in view.nodes)


def takes_mean(view: GraphView, node: NodeProto) -> bool:
    """Whether the nodes behind a node can make up for another mean of its result.

    That is a bias or running statistics; of what is no layer nothing is known, and nothing is asked of it.
    """
    layer = layer_of(view, node)
    if layer is None or layer.bias or layer.lacks_bias or layer.has_own_bias:
        return True
    return any(own_statistics(view, reader) is not None for reader in view.consumers(layer.output))


def epsilon(view: GraphView, member: Member) -> float:
    """Return the epsilon of the BatchNormalization that a member belongs to."""
    norm = batch_norm(view, view.producer(member.uses[0].node))
    assert norm is not None
    return norm.epsilon


def linear_weights(view: GraphView) -> dict[str, bool]:
    """Return the constant operands of linear operators, and whether they are depthwise filters, in graph order."""
    is_depthwise: dict[str, bool] = {}
    for node in view.nodes:
        operator = linear(view, node)
        if operator is not None and operator.weight:
            is_depthwise[operator.weight] = is_depthwise.get(operator.weight, False) or operator.is_depthwise
    return is_depthwise


def is_tiled(view: GraphView, operator: Linear) -> bool:
    """Whether runtimes compute an operator's channels in tiles: a plain or depthwise convolution of images."""
    plain = operator.convolved_parts == 1 or (operator.convolved_parts > 1 and operator.is_depthwise)
    return plain and len(view.weights[operator.weight].shape) == 4


@dataclass(frozen=True, eq=False)
class Layer:
    """A linear operator with a constant weight, up to its bias."""

    node: NodeProto
    operator: Linear
    rows: Axis  # its weight's axis with one entry per channel
    bias: str  # the vector that is added to the channels, '' where there is none
    last: NodeProto  # the node that adds it, which writes the layer's result: the operator itself or the Add behind

    @property
    def output(self) -> str:
        """The result, bias included."""
        return str(self.last.output[0])

    @property
    def has_own_bias(self) -> bool:
        """Whether the operator's own bias input is given."""
        index = self.operator.bias.number
        return 0 <= index < len(self.node.input) and bool(self.node.input[index])

    @property
    def lacks_bias(self) -> bool:
        """Whether nothing is added to the channels, and the operator takes a bias."""
        return not self.bias and self.operator.bias.number >= 0 and not self.has_own_bias

    @property
    def is_plain(self) -> bool:
        """Whether rows and bias alone make the result: scaled by a factor, they scale it."""
        return self.operator.is_plain and (bool(self.bias) or not self.has_own_bias)

    def width(self, view: GraphView) -> int:
        """Return the number of channels."""
        return view.weights[self.rows.tensor].shape[self.rows.axis] * self.rows.blocks


def find_layers(view: GraphView) -> Iterator[Layer]:
    """Yield the layers of a graph, in its order."""
    yield from (layer for node in view.nodes if (layer := layer_of(view, node)) is not None)


def layer_of(view: GraphView, node: NodeProto | None) -> Layer | None:
    """Return the layer that a node computes; None where it is no linear operator or its rows are not followed."""
    operator = linear(view, node)
    if node is None or operator is None or operator.rows is None:
        return None
    layer = Layer(node, operator, operator.rows, "", node)
    width = layer.width(view)
    if layer.has_own_bias:
        bias = node.input[operator.bias.number]
        is_vector = view.is_weight(bias) and view.weights[bias].shape[-1:] == (width,) == (view.weight_size(bias),)
        return replace(layer, bias=bias) if is_vector else layer
    reader = only_reader(view, node.output[0])
    added = computation(view, reader)
    if reader is not None and isinstance(added, Shift) and _lies_along(view, added.constant, layer, width):
        return replace(layer, bias=added.constant, last=reader)
    return layer


def _lies_along(view: GraphView, constant: str, layer: Layer, width: int) -> bool:
    """Whether a constant that is added to the result of a layer's operator holds one number per channel."""
    from_end = -layer.operator.channel_axis
    if from_end <= 0:
        shape = view.shape(layer.node.output[0])
        if shape is None:
            return False
        from_end += len(shape)
    dims = view.weights[constant].shape
    return from_end <= len(dims) and dims[-from_end] == width == view.weight_size(constant)


def is_rescalable(view: GraphView, layer: Layer) -> bool:
    """Whether rows and bias of a layer are what gives its channels their mean and deviation.

    No other node uses its weight, and no BatchNormalization with statistics of its own follows alone.
    """
    if not layer.is_plain or len(view.consumers(layer.rows.tensor)) > 1:
        return False
    readers = view.consumers(layer.output)
    return len(readers) != 1 or own_statistics(view, readers[0]) is None


@dataclass(frozen=True, eq=False)
class GroupLayer:
    """A layer whose output channels belong to a group."""

    rows: Member  # its weight's axis in the group
    bias: Member | None
    #: The BatchNormalization that is the only reader of its result, if there is one, nobody else uses the weight or the
    #: bias, and the bias is one number per row: rows and statistics may then be rescaled against each other.
    normalization: NodeProto | None


def group_layers(view: GraphView, group: FoldGroup) -> list[GroupLayer]:
    """Return the layers that produce a group's channels, in the order of the graph."""
    layers = []
    for member in group.with_role(Role.PRODUCER):
        for layer in filter(None, (layer_of(view, view.producer(use.node)) for use in member.uses)):
            biases = group.by_node[Role.BIAS].get(node_key(layer.last), ())
            bias = next((m for m in biases if m.axis.tensor == layer.bias), None)
            reader = only_reader(view, layer.output)
            scales = () if reader is None else group.by_node[Role.SCALE].get(reader.output[0], ())
            normalizes = any(m.positions.shape == member.positions.shape and len(m.uses) == 1 for m in scales)
            may_rescale = normalizes and _may_rescale(view, layer, member, bias)
            layers.append(GroupLayer(member, bias, reader if may_rescale else None))
    return layers


def _may_rescale(view: GraphView, layer: Layer, rows: Member, bias: Member | None) -> bool:
    """Whether rows and bias are this layer's own, the bias times one, and all that is added."""
    if not layer.is_plain or len(rows.uses) > 1 or len(view.consumers(rows.axis.tensor)) > 1:
        return False
    if not layer.bias:
        return True
    if layer.has_own_bias and layer.operator.bias.factor != 1.0:
        return False
    return bias is not None and bias.positions.shape == rows.positions.shape and len(view.consumers(layer.bias)) == 1


@dataclass(frozen=True, eq=False)
class Normalization:
    """A BatchNormalization of a group: its four parameters and, if it has exactly one, the layer in front of it."""

    epsilon: float
    scale: Member
    shift: Member
    mean: Member
    variance: Member
    layer: GroupLayer | None


def normalizations(view: GraphView, group: FoldGroup) -> list[Normalization]:
    """Return the BatchNormalizations of a group whose parameters are not shared with another node."""
    layers = group_layers(view, group)
    in_front = {layer.normalization.output[0]: layer for layer in layers if layer.normalization is not None}
    tables = [group.by_node[role] for role in (Role.SCALE, Role.SHIFT, Role.MEAN, Role.VARIANCE)]
    norms = []
    for output in tables[0]:
        if all(output in members for members in tables):
            scale, shift, mean, variance = (members[output][-1] for members in tables)
            norms.append(Normalization(epsilon(view, scale), scale, shift, mean, variance, in_front.get(output)))
    return norms


def bias_of(view: GraphView, layer: Layer, width: int) -> str | None:
    """Return the name of a layer's bias vector, of zeros where it had none; None where it cannot have one."""
    if layer.bias:
        return layer.bias if view.weight_size(layer.bias) == width else None
    node = view.producer(layer.node.output[0])
    if node is None or not layer.lacks_bias:
        return None
    name = view.add_weight(f"{node.output[0]}_bias", np.zeros(width, view.weight(layer.rows.tensor).dtype))
    view.fill_input(node, layer.operator.bias.number, name)
    return name
