"""Linear layers: an operator, its weight, and its bias, as one value.

A layer is a Conv, ConvTranspose or Gemm, or a MatMul with the Add of its bias. Repairs work on layers:
they rescale rows, move biases, and need to know which BatchNormalization normalises which rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnx import NodeProto

from onnxfold.channels.declarations import Role
from onnxfold.channels.group import FoldGroup, Member
from onnxfold.graph.nodes import attr_float
from onnxfold.graph.view import GraphView

#: Linear operators with an activation inside, as onnxruntime's optimiser writes them.
FUSED_OPS = frozenset({"FusedConv", "FusedGemm", "FusedMatMul"})

LINEAR_OPS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"}) | FUSED_OPS

#: What the ONNX operator takes where a BatchNormalization names no epsilon.
_BN_EPSILON = 1e-5


def batch_norm_epsilon(node: NodeProto) -> float:
    """Return the epsilon of a BatchNormalization."""
    return attr_float(node, "epsilon", _BN_EPSILON)


def epsilon(view: GraphView, member: Member) -> float:
    """Return the epsilon of the BatchNormalization that a member belongs to."""
    node = view.producer(member.uses[0].node)
    assert node is not None
    return batch_norm_epsilon(node)


@dataclass(frozen=True, eq=False)
class Layer:
    """A linear operator whose output channels belong to a group.

    Parameters
    ----------
    node : NodeProto
        The operator that holds the rows.
    rows : Member
        Its weight's axis in the group.
    bias : Member, optional
        Its bias in the group.
    output : str
        The tensor after the bias has been added.
    normalization : NodeProto, optional
        The BatchNormalization that is the only reader of `output`, if there is one, nobody else uses
        the weight or the bias, and the bias is one number per row: rows and statistics may then be rescaled against
        each other.
    """

    node: NodeProto
    rows: Member
    bias: Member | None
    output: str
    normalization: NodeProto | None


def layers(view: GraphView, group: FoldGroup) -> list[Layer]:
    """Return the layers that produce a group's channels, in the order of the graph."""
    found = []
    for member in group.with_role(Role.PRODUCER):
        for use in member.uses:
            node = view.producer(use.node)
            if node is not None and node.op_type in LINEAR_OPS:
                found.append(_layer(view, group, node, member))
    return found


def _layer(view: GraphView, group: FoldGroup, node: NodeProto, rows: Member) -> Layer:
    biases = group.by_node(Role.BIAS)
    output, bias = node.output[0], _last(biases, node.output[0])
    exclusive = len(rows.uses) == 1 and len(view.consumers(rows.axis.tensor)) == 1
    if bias is None and node.op_type not in ("Conv", "FusedConv") and _only_reader(view, output) is not None:
        reader = _only_reader(view, output)
        if reader is not None and reader.op_type == "Add" and reader.output[0] in biases:
            bias, output = _last(biases, reader.output[0]), reader.output[0]
    exclusive = exclusive and node.op_type not in FUSED_OPS and _has_plain_bias(view, node, rows, bias)
    reader = _only_reader(view, output)
    return Layer(node, rows, bias, output, reader if exclusive and _normalizes(group, reader, rows) else None)


def _last(members: Mapping[str, Sequence[Member]], node: str) -> Member | None:
    found = members.get(node)
    return found[-1] if found else None


def _has_plain_bias(view: GraphView, node: NodeProto, rows: Member, bias: Member | None) -> bool:
    """Whether the layer adds nothing to the rows' products but an unshared vector, times one."""
    if len(node.input) > 2 and node.input[2] and attr_float(node, "beta", 1.0) != 1.0:
        return False
    if bias is None:
        return len(node.input) < 3 or not node.input[2]
    tensor = bias.axis.tensor
    is_vector = view.weight_size(tensor) == view.weights[tensor].shape[bias.axis.axis]
    return is_vector and bias.positions.shape == rows.positions.shape and len(view.consumers(tensor)) == 1


def _normalizes(group: FoldGroup, reader: NodeProto | None, rows: Member) -> bool:
    """Whether a node is a BatchNormalization of the group with one entry per row."""
    if reader is None or reader.op_type != "BatchNormalization":
        return False
    scales = group.by_node(Role.SCALE).get(reader.output[0], ())
    return any(m.positions.shape == rows.positions.shape and len(m.uses) == 1 for m in scales)


def _only_reader(view: GraphView, tensor: str) -> NodeProto | None:
    readers = view.consumers(tensor)
    return readers[0] if len(readers) == 1 and tensor not in view.output_names else None


@dataclass(frozen=True, eq=False)
class Normalization:
    """A BatchNormalization of a group: its four parameters and, if it has exactly one, the layer in front of it."""

    node: NodeProto
    scale: Member
    shift: Member
    mean: Member
    variance: Member
    layer: Layer | None


def normalizations(view: GraphView, group: FoldGroup) -> list[Normalization]:
    """Return the BatchNormalizations of a group whose parameters are not shared with another node."""
    in_front = {id(layer.normalization): layer for layer in layers(view, group) if layer.normalization is not None}
    by_output = {layer.normalization.output[0]: layer for layer in in_front.values() if layer.normalization is not None}
    members: dict[str, dict[Role, Member]] = {}
    for role in (Role.SCALE, Role.SHIFT, Role.MEAN, Role.VARIANCE):
        for member in group.with_role(role):
            for use in member.uses:
                members.setdefault(use.node, {})[role] = member
    found = []
    for output, m in members.items():
        node = view.producer(output)
        if node is not None and len(m) == 4:
            found.append(
                Normalization(node, m[Role.SCALE], m[Role.SHIFT], m[Role.MEAN], m[Role.VARIANCE], by_output.get(output))
            )
    return found
