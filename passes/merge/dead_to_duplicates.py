"""Turn channels that nothing depends on into exact duplicates of others, which a fold merges at no loss."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import NodeProto

from onnxfold.channels.declarations import Role
from onnxfold.channels.group import FoldGroup, Member, per_unit, put_rows_of, replaced_rows, rows_of
from onnxfold.channels.layers import Layer, batch_norm, bias_of, layer_of, linear
from onnxfold.channels.rules.elementwise import KEEP_ZERO, PASS, PRODUCERS, is_sum
from onnxfold.graph.nodes import attr_float, node_key
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult

Values = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: What gives a number where it reads the same number everywhere.
_MOVES = frozenset({"Flatten", "GlobalAveragePool", "GlobalMaxPool", "Identity", "MaxPool", "Reshape", "Transpose"})
_ROLES = frozenset(Role) - {Role.BASIS, Role.GAIN}


@dataclass(frozen=True, eq=False)
class DeadToDuplicates(Pass):
    """Give dead channels the rows of a live one, and consumers that read nothing of them.

    Case 1: all consumer columns of a channel are zero. Case 2: the channel is zero whatever the input is. Where what
    follows makes another number of it, what consumers read of it goes into their biases, if they have room.
    """

    groups: tuple[FoldGroup, ...]  # all groups of the graph

    def run(self, view: GraphView) -> PassResult:
        """Rewrite every group that has dead channels."""
        modified = False
        for group in (group for group in self.groups if _is_plain(view, group)):
            values = known_values(view, group)
            if _constants_to_biases(view, group, values):
                modified, values = True, known_values(view, group)
            dead = dead_units(view, group, values)
            models = _models(group, dead)
            for member in group.members if dead.any() else ():
                rows = rows_of(view, member)
                changed = np.where(dead[:, None, None], 0, rows) if member.role is Role.CONSUMER else rows[models]
                if not np.array_equal(rows, changed):
                    put_rows_of(view, member, changed)
                    modified = True
        return PassResult(modified)


def dead_units(view: GraphView, group: FoldGroup, values: Mapping[str, Values]) -> Mask:
    """Return which channels of a group no output depends on, as far as its weights show it."""
    none, dead = np.zeros(group.size, bool), np.ones(group.size, bool)
    for member in group.with_role(Role.CONSUMER):
        is_unread = ~rows_of(view, member).reshape(group.size, -1).any(axis=1)
        for use in member.uses:
            node = view.producer(use.node)
            reads = [] if node is None else [name for name in node.input if name in values]
            is_zero = np.all([values[name] == 0 for name in reads], axis=0) if reads else none
            # What is part of a range is read.
            dead &= is_zero if use.node in view.rescaled else is_unread | is_zero
    return dead


def _is_plain(view: GraphView, group: FoldGroup) -> bool:
    """Whether channels of a group may go where nothing depends on them."""
    is_bound = group.rules.averaged or group.rules.tie is not None
    special = is_bound or group.apart or group.is_there_to_rotate or group.rotates
    roles = {member.role for member in group.members}
    return not special and Role.CONSUMER in roles and roles <= _ROLES and _is_followed(view, group)


def _constants_to_biases(view: GraphView, group: FoldGroup, values: Mapping[str, Values]) -> bool:
    """Add to the biases of all consumers what channels that are one number give them; return whether any is."""
    wanted, readers = np.ones(group.size, bool), []
    for member in group.with_role(Role.CONSUMER):
        is_read = rows_of(view, member).reshape(group.size, -1).any(axis=1)
        layer = _layer_with_room(view, member)
        reads = [] if layer is None else [name for name in layer.node.input if name in values]
        if layer is None or len(reads) != 1:
            wanted &= ~is_read
            continue
        readers.append((member, layer, values[reads[0]], is_read))
        wanted &= ~is_read | np.isfinite(values[reads[0]])
    modified = False
    for member, layer, value, is_read in readers:
        units = wanted & is_read & (value != 0)
        bias = bias_of(view, layer, layer.width(view)) if units.any() else None
        if bias is None:
            continue
        rows = rows_of(view, member).astype(np.float64)
        factor = np.where(units, value, 0.0).reshape(-1, 1, 1)
        constants = replaced_rows(np.zeros(view.weight(layer.rows.tensor).shape), member, rows * factor)
        others = tuple(axis for axis in range(constants.ndim) if axis != layer.rows.axis)
        view.set_weight(bias, view.weight(bias) + constants.sum(axis=others).reshape(view.weight(bias).shape))
        rows[units] = 0.0
        put_rows_of(view, member, rows)
        modified = True
    return modified


def _layer_with_room(view: GraphView, member: Member) -> Layer | None:
    """Return a consumer that takes a bias, and reads the same of a channel at every position; None for others."""
    layer = layer_of(view, view.producer(member.uses[0].node)) if len(member.uses) == 1 else None
    if layer is None or not layer.operator.bias.takes_constants or layer.operator.bias.factor != 1.0:
        return None
    is_shared = any(len(view.consumers(name)) > 1 for name in (member.axis.tensor, layer.bias) if name)
    has_room = bool(layer.bias) or layer.lacks_bias
    is_part_of_range = member.uses[0].node in view.rescaled
    return layer if has_room and not (is_shared or is_part_of_range) else None


def _models(group: FoldGroup, dead: Mask) -> npt.NDArray[np.int64]:
    """Return, per channel, the one whose rows it gets: itself where it lives, else the first live one of its block."""
    models = np.arange(group.size)
    for of_block in group.units_by_block:
        live = of_block[~dead[of_block]]
        models[of_block[dead[of_block]]] = live[0] if len(live) else of_block[0]
    return models


def _is_followed(view: GraphView, group: FoldGroup) -> bool:
    """Whether all that reads the channels are consumers, and operators that compute each from itself alone."""
    tensors, readers = {axis.tensor for axis in group.tensors}, group.by_node[Role.CONSUMER]
    for name in tensors:
        if name in view.output_names:
            return False
        for node in view.consumers(name):
            passes = node.op_type in PASS and any(output in tensors for output in node.output)
            is_depthwise = linear(view, node) is not None and node_key(node) in group.by_node[Role.PRODUCER]
            if not (node_key(node) in readers or passes or is_depthwise):
                return False
    return True


def known_values(view: GraphView, group: FoldGroup) -> Mapping[str, Values]:
    """Return, per tensor of a group, what every channel is whatever the input is; NaN where that is not known."""
    constants = {axis.tensor: np.full(group.size, np.nan) for axis in group.tensors}
    with np.errstate(all="ignore"):
        for node in view.nodes:
            written = [name for name in node.output if name in constants]
            if written:
                value = _value(view, group, node, [constants[name] for name in node.input if name in constants])
                constants.update(dict.fromkeys(written, value))
    return constants


def _value(view: GraphView, group: FoldGroup, node: NodeProto, read: list[Values]) -> Values:
    unknown = np.full(group.size, np.nan)

    def of(role: Role) -> list[Values]:
        return [_vector(view, member) for member in group.by_node[role].get(node_key(node), ())]

    producers = group.by_node[Role.PRODUCER].get(node_key(node), ())
    if producers:
        has_other_bias = len(node.input) > 2 and node.input[2] and not of(Role.BIAS)  # a number for all channels
        if node.op_type not in PRODUCERS or has_other_bias or attr_float(node, "beta", 1.0) != 1.0:
            return unknown
        is_zero = np.all([~rows_of(view, m).reshape(group.size, -1).any(axis=1) for m in producers], axis=0)
        return np.where(is_zero, sum(of(Role.BIAS), np.zeros(group.size)), np.nan)
    if not read:
        return unknown
    if batch_norm(view, node) is not None:
        parameters = [v for r in (Role.SCALE, Role.SHIFT, Role.MEAN, Role.VARIANCE) for v in of(r)]
        if len(parameters) != 4:
            return unknown
        scale, shift, mean, variance = parameters
        normal = (read[0] - mean) / np.sqrt(variance + attr_float(node, "epsilon", 1e-5))
        return np.where(scale == 0, shift, normal * scale + shift)
    if node.op_type in _MOVES:
        return read[0]
    if node.op_type == "Relu":
        return np.maximum(read[0], 0.0)
    if is_sum(node):
        biases = of(Role.BIAS)
        others = sum(bool(name) for name in node.input) - len(read) - len(biases)
        return unknown if others else sum([*read, *biases], np.zeros(group.size))
    if node.op_type == "Mul":
        return np.where(np.any([v == 0 for v in read], axis=0), 0.0, np.nan)
    if node.op_type == "Clip":
        bounds = [view.weight(name).item() for name in node.input[1:] if view.is_weight(name)]
        is_inside = len(bounds) == sum(map(bool, node.input[1:])) == 2 and bounds[0] <= 0 <= bounds[1]
        return np.clip(read[0], *bounds) if is_inside else unknown
    if node.op_type in KEEP_ZERO:
        return np.where(np.all([v == 0 for v in read], axis=0), 0.0, np.nan)
    return unknown


def _vector(view: GraphView, member: Member) -> Values:
    """Return one number per channel; NaN where a channel has several that differ."""
    values = per_unit(view, member).astype(np.float64)
    return np.where((values == values[:, :1]).all(axis=1), values[:, 0], np.nan)
