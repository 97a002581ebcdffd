"""Reset statistics to those of the folded network on some inputs (Fold-R, Fold-DIR).

With BatchNormalization: one forward pass in which every one of them that the fold has changed something for takes the
mean and the variance of what reaches it.
Without: the rows and the bias of every merged layer are rescaled so that its output has its members' mean and deviation
(REPAIR), which needs the original beside it.

References
----------
arXiv 2502.10216, section 4; REPAIR: arXiv 2211.08403.
"""

from dataclasses import dataclass, field
from typing import Literal

from onnxfold.channels.layers import own_statistics
from onnxfold.cluster.plan import FoldPlan
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult
from onnxfold.passes.repair.restore_statistics import Restoration
from onnxfold.passes.repair.side_by_side import SideBySide
from onnxfold.progress import Progress, silent
from onnxfold.statistics.moments import ChannelMoments
from onnxfold.statistics.observe import Observation


@dataclass(frozen=True, eq=False)
class Recalibrate(Pass):
    """Take statistics from inputs."""

    original: GraphView  # the network before the merge
    plan: FoldPlan
    observation: Observation  # the original as it runs on the inputs, and the inputs
    progress: Progress = field(default=silent, compare=False)

    def run(self, view: GraphView) -> PassResult:
        """Run both networks once."""
        seen = self.observation
        # A fresh reference: where the networks are equal, both keep the statistics that they are shipped with.
        reference = self.original.copy()
        matches: Literal["deviating", "nothing"] = "deviating" if seen.rules.matches else "nothing"
        walk = SideBySide(reference, view, self.plan, seen.inputs, matches=matches)
        restoration = Restoration(walk, self.original)
        for before, after in walk.steps("recalibrate", self.progress, restoration.ends_layer):
            norm = own_statistics(self.original, before)
            if norm is not None and walk.deviates(before):
                moments = ChannelMoments(walk.folded.values[after.input[0]], 1)
                view.set_weight(norm.mean, moments.mean)
                view.set_weight(norm.variance, moments.variance)
            walk.run(before, after)
            restoration.layer(before)
        restoration.finish()
        return PassResult(modified=bool(self.plan.groups))
