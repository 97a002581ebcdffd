"""Least-squares repair: original and folded network run side by side on inputs that need not be real.

Walk both networks once, in topological order. At every consumer of folded channels, replace the plain column sum by
the columns that reproduce the original's output best (:mod:`onnxfold.passes.repair.compensate`). Behind every layer
whose rows were merged, restore what averaging took from the activations
(:mod:`onnxfold.passes.repair.restore_statistics`). Every step sees what the steps before it left, so errors are
corrected where they arise instead of adding up. Where inputs are few beside what the network tells apart, as those of a
model that continues texts, that would fit the noise of the steps before; every group is then repaired as if nothing
else was folded.
"""

from dataclasses import dataclass, field

from onnx import NodeProto

from onnxfold.cluster.plan import FoldPlan
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult
from onnxfold.passes.repair.compensate import Compensation
from onnxfold.passes.repair.refit_recurrences import RecurrenceRefit
from onnxfold.passes.repair.refits import Refits
from onnxfold.passes.repair.restore_statistics import Restoration
from onnxfold.passes.repair.side_by_side import SideBySide
from onnxfold.progress import Progress, silent
from onnxfold.statistics.observe import Observation


@dataclass(frozen=True, eq=False)
class RepairLeastSquares(Pass):
    """Compensate consumers and restore statistics."""

    original: GraphView  # the network before the merge
    plan: FoldPlan
    observation: Observation  # the original as it runs on the inputs, and the inputs
    seed: int = 0  # seed of the positions that are looked at
    refits: Refits | None = field(default=None, compare=False)  # takes what is done to weights
    progress: Progress = field(default=silent, compare=False)

    def run(self, view: GraphView) -> PassResult:
        """Walk the networks."""
        walk = SideBySide.of(self.observation, view, self.plan)
        rules = self.observation.rules
        compensation = Compensation(walk, self.seed, self.refits, rules)
        recurrences = RecurrenceRefit(walk, compensation)
        restoration = Restoration(walk, self.original, self.refits, rules.doubt.part)

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
