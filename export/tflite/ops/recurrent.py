r"""LSTM, GRU and RNN, written out step by step.

TFLite has no GRU, and its LSTM is not on microcontrollers in every form; FULLY_CONNECTED is. The inputs of all steps
are projected at once, X W^T + b of shape (T, N, gates); then every step takes its own part and adds H R^T. Before the
first step H is zero where no initial state is given, and nothing is multiplied.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from onnxfold.export.tflite.context import Op, converter
from onnxfold.export.tflite.graph import Value
from onnxfold.export.tflite.layout import Dynamic, LayoutRule
from onnxfold.graph.tensors import Array

#: Steps that are written out at most: each takes a dozen operators.
_MOST_STEPS = 256
_DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


@converter("LSTM", "GRU", "RNN", layouts=LayoutRule())
def recurrent(op: Op) -> None:
    """FULLY_CONNECTED and elementwise operators, step by step; 256 steps at most, with the default activations."""
    _check(op)
    swapped = bool(op.integer("layout", 0))
    x = op.read(0)
    x = op.graph.transpose(x, (1, 0, 2)) if swapped else x
    if isinstance(x.shape[0], Dynamic) or not 1 <= int(x.shape[0]) <= _MOST_STEPS:
        op.refuse(f"every step is written out: fix the length of the sequence, to {_MOST_STEPS} at most")
    ways = {"forward": [False], "reverse": [True]}.get(op.text("direction", "forward"), [False, True])
    lanes = [_Lane(op, x, number, backward) for number, backward in enumerate(ways)]
    done = [lane.run() for lane in lanes]
    graph, batch, width = op.graph, x.shape[1], lanes[0].width
    if op.has_output(0):
        rows = [[graph.reshape(h, (1, 1, batch, width)) for h in hidden] for hidden, _ in done]
        y = graph.concatenate([graph.concatenate(lane_rows, 0) for lane_rows in rows], 1)
        op.write(graph.transpose(y, (2, 0, 1, 3)) if swapped else y)
    last = [hidden[0 if lane.backward else -1] for lane, (hidden, _) in zip(lanes, done, strict=True)]
    for index, states in ((1, last), (2, [cell for _, cell in done])):
        if op.has_output(index):
            y = graph.concatenate([graph.reshape(state, (1, batch, width)) for state in states if state is not None], 0)
            op.write(graph.transpose(y, (1, 0, 2)) if swapped else y, None, index)


def _check(op: Op) -> None:
    """Refuse the forms that are not written."""
    names = [n.decode() if isinstance(n, bytes) else str(n) for n in op.value("activations", []) or []]  # type: ignore[attr-defined]
    defaults = _DEFAULTS[op.op_type]
    if [n.lower() for n in names] not in ([], [n.lower() for n in defaults], [n.lower() for n in defaults * 2]):
        op.refuse(f"its activations are {', '.join(names)}, and only {', '.join(defaults)} are written")
    if op.has_attribute("clip"):
        op.refuse("it clips what goes into its gates")
    if op.integer("input_forget", 0):
        op.refuse("its input and forget gates are coupled")
    if op.has_input(4):
        lengths = op.required_weight(4, "lengths of sequences")
        if (lengths != int(op.shape(0)[1 if op.integer("layout", 0) else 0])).any():
            op.refuse("its sequences have different lengths")


@dataclass
class _Lane:
    """One direction."""

    op: Op
    x: Value  # inputs of shape (T, N, I)
    number: int  # its place among the directions
    backward: bool  # whether it reads the sequence from its end
    _constants: dict[tuple[int, int, int], Value] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """Size of the hidden state."""
        return int(self.op.shape(2)[-1])

    def run(self) -> tuple[list[Value], Value | None]:
        """Return the hidden states in the order of the sequence, and the last cell state of an LSTM."""
        hidden, cell = self._state(5), self._state(6) if self.op.op_type == "LSTM" else None
        step = {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}[self.op.op_type]
        parts = self._project_inputs()
        states: list[Value] = []
        for part in reversed(parts) if self.backward else parts:
            hidden, cell = step(part, hidden, cell)
            states.append(hidden)
        return states[::-1] if self.backward else states, cell

    def _own_weight(self, index: int, change: Callable[[Array], Array]) -> Value:
        self.op.required_weight(index, "weight")
        return self.op.weight(index, lambda values: change(values[self.number]))

    def _rows(self, index: int, start: int, stop: int) -> Value:
        """Return some rows of this direction's part of a weight; one constant for all steps."""
        key = (index, start, stop)
        if key not in self._constants:
            self._constants[key] = self._own_weight(index, lambda values: values[start:stop])
        return self._constants[key]

    def _zeros(self, count: int) -> Value:
        zeros = self.op.graph.constant(np.zeros(count, np.float32), "no_bias")
        return self._constants.setdefault((-1, 0, count), zeros)

    def _project_inputs(self) -> list[Value]:
        """Return X W^T + b, step by step, each of shape (N, gates)."""
        gates = int(self.op.shape(1)[1])
        kernel = self._own_weight(1, lambda w: w)
        bias = self._own_weight(3, self._bias) if self.op.has_input(3) else self._zeros(gates)
        steps, batch = int(self.x.shape[0]), self.x.shape[1]
        graph = self.op.graph
        y = graph.op("FULLY_CONNECTED", [self.x, kernel, bias], (steps, batch, gates), version=5, keepNumDims=True)
        return [graph.reshape(part, (batch, gates)) for part in graph.split(y, 0, steps)]

    def _bias(self, both: Array) -> Array:
        """Return the bias added before a step: that of H R^T, too, unless the reset gate multiplies it."""
        mine, recurrent_part = both[: len(both) // 2], both[len(both) // 2 :]
        if not self._resets_product:
            return np.add(mine, recurrent_part)
        kept = 2 * self.width
        return np.concatenate([np.add(mine, recurrent_part)[:kept], mine[kept:]])

    @property
    def _resets_product(self) -> bool:
        return self.op.op_type == "GRU" and bool(self.op.integer("linear_before_reset", 0))

    def _state(self, index: int) -> Value | None:
        """Return an initial state of shape (N, H); None where it is zero."""
        op = self.op
        if not op.has_input(index):
            return None
        if op.is_constant(index):
            values = op.required_weight(index, "initial state")
            mine = values[:, self.number] if op.integer("layout", 0) else values[self.number]
            return None if not mine.any() else op.graph.constant(mine, "initial_state")
        state = op.read(index)
        state = op.graph.transpose(state, (1, 0, 2)) if op.integer("layout", 0) else state
        return op.graph.reshape(
            op.graph.split(state, 0, int(state.shape[0]))[self.number], (self.x.shape[1], self.width)
        )

    def _product(self, state: Value, first: int, last: int, bias: Value | None = None) -> Value:
        """Return H R^T for the gates from the first up to the last."""
        count = (last - first) * self.width
        kernel = self._rows(2, first * self.width, last * self.width)
        inputs = [state, kernel, bias or self._zeros(count)]
        return self.op.graph.op("FULLY_CONNECTED", inputs, (self.x.shape[1], count))

    def _rnn(self, x: Value, hidden: Value | None, cell: Value | None) -> tuple[Value, Value | None]:
        c = self.op.graph
        total = x if hidden is None else c.add(x, self._product(hidden, 0, 1))
        return c.unary("TANH", total), None

    def _lstm(self, x: Value, hidden: Value | None, cell: Value | None) -> tuple[Value, Value | None]:
        """Gates in ONNX's order i, o, f, c; peepholes P in the order i, o, f."""
        c = self.op.graph
        total = x if hidden is None else c.add(x, self._product(hidden, 0, 4))
        i, o, f, new = self.op.graph.split(total, 1, 4)
        i = c.unary("LOGISTIC", self._peep(i, cell, 0))
        grown = c.mul(i, c.unary("TANH", new))
        if cell is not None:
            grown = c.add(c.mul(c.unary("LOGISTIC", self._peep(f, cell, 2)), cell), grown)
        o = c.unary("LOGISTIC", self._peep(o, grown, 1))
        return c.mul(o, c.unary("TANH", grown)), grown

    def _peep(self, gate: Value, cell: Value | None, place: int) -> Value:
        if cell is None or not self.op.has_input(7):
            return gate
        weights = self._rows(7, place * self.width, (place + 1) * self.width)
        return self.op.graph.add(gate, self.op.graph.mul(cell, weights))

    def _gru(self, x: Value, hidden: Value | None, cell: Value | None) -> tuple[Value, Value | None]:
        """Gates in ONNX's order z, r, h; H' = (1 - z) h + z H = h + z (H - h)."""
        c = self.op.graph
        z, r, new = self.op.graph.split(x, 1, 3)
        bias = None
        if self._resets_product and self.op.has_input(3):
            bias = self._rows(3, 5 * self.width, 6 * self.width)
        if hidden is None:
            if bias is not None:
                new = c.add(new, c.mul(c.unary("LOGISTIC", r), bias))
            h = c.unary("TANH", new)
            return c.sub(h, c.mul(c.unary("LOGISTIC", z), h)), None
        zr, rr = self.op.graph.split(self._product(hidden, 0, 2), 1, 2)
        z, r = c.unary("LOGISTIC", c.add(z, zr)), c.unary("LOGISTIC", c.add(r, rr))
        if self._resets_product:
            part = c.mul(r, self._product(hidden, 2, 3, bias))
        else:
            part = self._product(c.mul(r, hidden), 2, 3)
        h = c.unary("TANH", c.add(new, part))
        return c.add(h, c.mul(z, c.sub(hidden, h))), None
