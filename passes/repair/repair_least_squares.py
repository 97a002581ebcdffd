"""Least-squares repair: original and folded network run side by side on inputs that need not be real.

Walk both networks once, in topological order. At every consumer of folded channels, replace the plain column sum by
the columns that reproduce the original's output best (:mod:`onnxfold.passes.repair.compensate`). Behind every layer
whose rows were merged, restore what averaging took from the activations
(:mod:`onnxfold.passes.repair.restore_statistics`). Every step sees what the steps before it left, so errors are
corrected where they arise instead of adding up. Where inputs are few beside what the network tells apart, as those of a
model that continues texts, that would fit the noise of the steps before; every group is then repaired as if nothing
else was folded.

Least-squares compensation of LSTM, GRU and RNN.

Every gate computes W x_t + R h_(t-1) + b from an input x and the operator's own last result h. The columns of W are
compensated like those of any consumer. Those of R read what the same operator writes, so what stands in the place of
h is not known before R is: at first h' = P h, as if the merged network followed the original at every step, and then
what the folded operator writes with the R that this gives. R becomes R B, with B by the formula of
:mod:`onnxfold.passes.repair.compensate`.

What the means of x and h lack, W (E x - B E x') and R (E h - B E h'), is added to the bias of either.
"""

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from onnxfold.channels.declarations import Axis, Recurrence
from onnxfold.channels.layers import computation
from onnxfold.graph.tensors import Array, Matrix
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import PassResult
from onnxfold.passes.merge.fold_channels import merge_weight
from onnxfold.passes.repair.compensate import Compensation
from onnxfold.passes.repair.restore_statistics import Restoration
from onnxfold.passes.repair.side_by_side import ObservedRepair, SideBySide
from onnxfold.statistics.moments import ChannelMoments

#: How often R is refitted: with P h, and with what the folded operator writes.
_ROUNDS = 2


class RecurrenceRefit:
    """Refits recurrences while both networks run."""

    def __init__(self, walk: SideBySide, compensation: Compensation) -> None:
        self._walk = walk
        self._compensation = compensation

    def compares(self, node: NodeProto) -> bool:
        """Whether a node's results are looked at."""
        return isinstance(computation(self._walk.reference.view, node), Recurrence)

    def refit(self, before: NodeProto, after: NodeProto) -> None:
        """After a recurrence has run in the original, and before it runs in the fold, refit R and the biases."""
        recurrence = computation(self._walk.reference.view, before)
        if not isinstance(recurrence, Recurrence) or not self._walk.deviates(before):
            return
        view = self._walk.folded.view
        biases = after.input[recurrence.biases] if recurrence.biases < len(after.input) else ""
        alone = view.is_weight(biases) and len(view.consumers(biases)) == 1
        merged = view.weight(biases).astype(np.float64) if alone else None
        read, written = before.input[0], next(filter(None, before.output))
        lacking = self._mean_deficit(recurrence.inputs, Axis(read, 2)) if alone else None
        own = Axis(written, self._walk.reference.values[written][0].ndim - 1)
        mapped = self._walk.map(own.tensor, own.axis)
        for turn in range(_ROUNDS):
            if mapped is not None and turn == 0:
                values = self._walk.reference.values[written]
                self._walk.folded.values[written] = [mapped.encode_samples(part) for part in values]
            else:
                self._walk.folded.run(after)
            self._compensation.refit_own(before, own)
            of_states = None if lacking is None else self._mean_deficit(recurrence.states, own)
            if merged is not None and lacking is not None and of_states is not None:
                changed = merged + np.concatenate((lacking, of_states), axis=-1)
                view.set_weight(biases, changed.astype(view.weight(biases).dtype))
        self._compensation.forget(own)

    def _mean_deficit(self, weight: str, channels: Axis) -> Matrix | None:
        """Return the deficit of the mean of a weight's product, shape (directions, gates * hidden)."""
        walk, original = self._walk, self._walk.reference.view
        mapped = walk.map(channels.tensor, channels.axis)
        if mapped is None:
            return None
        sides = (side.values[channels.tensor] for side in (walk.reference, walk.folded))
        goal, seen = (ChannelMoments(values, channels.axis).mean for values in sides)
        columns = self._compensation.columns(channels, mapped)
        missing: Array = goal.copy()
        missing[mapped.positions] -= columns @ seen[mapped.folded_positions]
        units = (mapped.positions, np.arange(len(mapped.positions)), None)
        rows = merge_weight(original, walk.plan, weight, original.weight(weight), {Axis(weight, 2): units})
        return rows.astype(np.float64) @ missing


@dataclass(frozen=True, eq=False)
class RepairLeastSquares(ObservedRepair):
    """Compensate consumers and restore statistics."""

    seed: int = 0  # seed of the positions that are looked at

    def run(self, view: GraphView) -> PassResult:
        """Walk the networks."""
        seen, rules = self.observation, self.observation.rules
        walk = SideBySide(
            seen.reference, view, self.plan, seen.inputs,
            matches="all" if seen.is_to_match else "nothing", heals=rules.by_length,
        )  # fmt: skip
        compensation = Compensation(walk, self.seed, rules)
        recurrences = RecurrenceRefit(walk, compensation)
        restoration = Restoration(walk, self.original, rules.doubt.part)

        def is_compared(node: NodeProto) -> bool:
            of_taps = compensation.compares(node) and walk.repairs(node)
            return of_taps or recurrences.compares(node) or restoration.ends_layer(node)

        for before, after in walk.steps("least squares", self.progress, is_compared):
            compensation.refit_channels(before)
            restoration.batch_norm(before)
            walk.reference.run(before)
            compensation.refit_taps(before, after)
            recurrences.refit(before, after)
            walk.run_folded(before, after)
            restoration.layer(before)
        restoration.finish()
        return PassResult(modified=bool(self.plan.groups))
