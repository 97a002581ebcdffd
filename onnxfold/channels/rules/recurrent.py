"""LSTM, GRU and RNN: input side and hidden side."""

import numpy as np

from onnxfold.channels.context import CannotDeclareError, NodeContext
from onnxfold.channels.declarations import Axis, Positions, Role
from onnxfold.channels.operators import Recurrence
from onnxfold.channels.registry import channel_rule

#: Gates per operator: W is (directions, gates * hidden, input), R (directions, gates * hidden, hidden).
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrence(node: NodeContext) -> Recurrence:
    """Name the weights."""
    return Recurrence(node.input(1), node.input(2), 3)


@channel_rule("LSTM", "GRU", "RNN", computes=recurrence, mixes="the recurrence runs along this axis")
def recurrent(node: NodeContext) -> None:
    """Hidden unit h owns row h of every gate in W, R, B and P, and column h of R.

    Merging hidden units is exact for units with equal rows: they have equal states from the first step on, so
    the columns of R that read them may be added. Both directions share the hidden axis of every tensor, hence
    unit h of one is merged together with unit h of the other.
    """
    x, w, r = node.input(0), node.input(1), node.input(2)
    if not node.is_weight(w) or not node.is_weight(r):
        raise CannotDeclareError("its weights are computed at run time")
    gates = _GATES[node.op_type]
    hidden = node.integer("hidden_size", 0) or node.shape(r)[2] or 0
    batch_first = bool(node.integer("layout", 0))
    rows = np.tile(np.arange(hidden), gates)
    states = [y for y in node.outputs if y]
    anchor = node.axis(states[0], -1)
    node.use(node.axis(w, 2), Role.CONSUMER, node.axis(x, 2))
    node.use(node.axis(w, 1), Role.PRODUCER, anchor, None, rows)
    node.use(node.axis(r, 1), Role.PRODUCER, anchor, None, rows)
    node.use(node.axis(r, 2), Role.CONSUMER, anchor)
    _vector(node, 3, Role.BIAS, anchor, np.tile(np.arange(hidden), 2 * gates))
    _vector(node, 7, Role.PARAMETER, anchor, np.tile(np.arange(hidden), 3))
    for tensor in [*states[1:], *filter(None, (node.input(5), node.input(6)))]:
        if node.is_weight(tensor):
            node.use(node.axis(tensor, -1), Role.PARAMETER, anchor)
        else:
            node.link(anchor, node.axis(tensor, -1))
    node.count(anchor, "hidden_size")
    if node.output(0):
        source, target = (0, 0) if batch_first else (1, 2)
        node.link(node.axis(x, source), node.axis(node.output(0), target))


def _vector(node: NodeContext, index: int, role: Role, anchor: Axis, rows: Positions) -> None:
    if not node.input(index):
        return
    if not node.is_weight(node.input(index)):
        raise CannotDeclareError("its biases are computed at run time")
    node.use(node.axis(node.input(index), 1), role, anchor, None, rows)
