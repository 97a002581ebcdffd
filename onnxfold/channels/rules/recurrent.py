"""LSTM, GRU and RNN: input side and hidden side."""

import numpy as np

from onnxfold.channels.context import NodeContext, channel_rule
from onnxfold.channels.declarations import Lengths, Recurrence, Role

#: Gates per operator: W is (directions, gates * hidden, input), R (directions, gates * hidden, hidden).
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrence(node: NodeContext) -> Recurrence:
    """Name the weights, and the axes of time and samples."""
    return Recurrence(node.input(1), node.input(2), 3, Lengths(node.input(0), 0, 2))


@channel_rule("LSTM", "GRU", "RNN", computes=recurrence, mixes="the recurrence runs along this axis")
def recurrent(node: NodeContext) -> None:
    """Hidden unit h owns row h of every gate in W, R, B and P, and column h of R.

    Units with equal rows have equal states from the first step on, so the columns of R that read them may be added.
    Both directions share the hidden axis of every tensor: unit h of one is merged together with unit h of the other.
    """
    x, w, r = node.input(0), node.weight(1, "its weight"), node.weight(2, "its weight")
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
    for index, role, times in ((3, Role.BIAS, 2 * gates), (7, Role.PARAMETER, 3)):
        if node.input(index):
            vector = node.axis(node.weight(index, "its bias"), 1)
            node.use(vector, role, anchor, None, np.tile(np.arange(hidden), times))
    for tensor in [*states[1:], *filter(None, (node.input(5), node.input(6)))]:
        node.link(anchor, node.axis(tensor, -1))
    node.count(anchor, "hidden_size")
    if node.output(0):
        node.carry([0] if batch_first else [1], [0] if batch_first else [2])
