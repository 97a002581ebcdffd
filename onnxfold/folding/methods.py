"""The methods as rows of one table: partition x repair x inputs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from onnxfold.channels import FoldGroup
from onnxfold.cluster.partitioners import ROTATION, SELECTION, Partitioner, find_partitioner
from onnxfold.cluster.plan import FoldPlan
from onnxfold.errors import ConfigError
from onnxfold.graph.view import GraphView
from onnxfold.language.lookups import FOLD_AR_START, FOLD_AR_STOP
from onnxfold.passes.base import Pass
from onnxfold.passes.merge.normalize_batch_norm import NormalizeBatchNorm, ScaleToOutput
from onnxfold.passes.repair.repair_approximate import RepairApproximate
from onnxfold.passes.repair.repair_bias import RepairBias
from onnxfold.passes.repair.repair_least_squares import RepairLeastSquares
from onnxfold.passes.repair.restore_statistics import Recalibrate
from onnxfold.progress import Progress, silent
from onnxfold.statistics.observe import Observation


def outside(groups: Sequence[FoldGroup], start: float, stop: float) -> list[int]:
    """Return the indices of the groups in blocks whose middles do not lie between two fractions of the depth.

    Every block has heads and feed-forward channels, so the groups of either kind are counted in the order of the graph.
    Groups whose widths are tied over all layers lie nowhere.
    """
    indices = []
    for apart in (False, True):
        alike = [i for i, group in enumerate(groups) if group.apart is apart]
        places = {index: (rank + 0.5) / len(alike) for rank, index in enumerate(alike)}
        indices += [i for i, place in places.items() if not start <= place < stop]
    return sorted(i for i in indices if groups[i].rules.tie is None)


@dataclass(frozen=True)
class RowUnits:
    """The units that rows are merged in."""

    #: Takes groups, returns the passes that bring their rows into these units.
    passes: Callable[[tuple[FoldGroup, ...]], tuple[Pass, ...]]
    keeps_deviation: bool = False  # whether the deviation of a BatchNormalization still says something about its row


STORED = RowUnits(lambda groups: (), keeps_deviation=True)
NORMALISED = RowUnits(lambda groups: (NormalizeBatchNorm(groups),))  # divided by their BatchNormalization's deviation
OUTPUT = RowUnits(lambda groups: (ScaleToOutput(groups),))  # scaled to what leaves their BatchNormalization


@dataclass(frozen=True, eq=False)
class RepairTask:
    """The graph, the fold and the observation that a repair works on."""

    #: The graph before the merge, rows in the units of the repair, columns of exact duplicates added up.
    compared: GraphView
    #: The same, whose rows tell how alike channels are: of networks that are merged, with the columns of channels that
    #: become one added up.
    matched: GraphView
    plan: FoldPlan  # the fold
    #: The original on inputs; there for repairs that need inputs, and perhaps for others.
    observation: Observation | None = None
    seed: int = 0  # seed of everything random
    progress: Progress = silent  # called for every step

    @property
    def observed(self) -> Observation:
        """The observation, which a repair that needs inputs has."""
        assert self.observation is not None
        return self.observation


@dataclass(frozen=True)
class Repair:
    """Repair of the activations after the merge: a row of the table."""

    name: str  # name on the command line
    summary: str  # one line for the documentation
    #: Takes a :class:`RepairTask`, returns the passes that run after the merge.
    passes: Callable[[RepairTask], tuple[Pass, ...]]
    units: RowUnits = NORMALISED  # the units that rows are merged in
    needs_inputs: bool = False  # whether it runs the network
    #: Whether it restores what averaging loses, and so goes with clusterings that average only.
    needs_averages: bool = False
    adds_biases: bool = False  # whether it gives a bias to layers that have none, where their operator takes one
    #: Whether it may add nodes, as biases where an operator takes none. Its passes then run last: whatever looks at
    #: both networks side by side takes them to have the same nodes.
    adds_nodes: bool = False


REPAIRS = {
    r.name: r
    for r in (
        Repair("none", "nothing", lambda task: (), STORED),
        Repair("approximate", "rescale by the correlation of the merged rows (Fold-AR)",
               lambda t: (RepairApproximate(t.matched, t.plan),), needs_averages=True),
        Repair("independent", "rescale as if merged channels were independent (IFM's variances)",
               lambda t: (RepairApproximate(t.matched, t.plan, independent=True),), needs_averages=True),
        Repair("recalibrate", "statistics of the folded network on inputs (Fold-R, REPAIR)",
               lambda t: (Recalibrate(t.compared, t.plan, t.observed, t.progress),), needs_inputs=True),
        Repair("least-squares", "consumers refitted beside the original, statistics restored",
               lambda t: (RepairLeastSquares(t.compared, t.plan, t.observed, t.progress, t.seed),), OUTPUT,
               needs_inputs=True, adds_biases=True),
        Repair("bias", "the mean of what is dropped becomes a bias (FLAP)",
               lambda t: (RepairBias(t.compared, t.plan, t.observed, t.progress),), STORED,
               needs_inputs=True, adds_biases=True, adds_nodes=True),
    )
}  # fmt: skip

#: What stands in, in this order, for a repair that needs inputs, where the network cannot be run.
STAND_IN_REPAIRS = ("approximate", "none")


@dataclass(frozen=True)
class Method:
    """A composition."""

    name: str  # name on the command line
    cluster: str  # a row of :data:`onnxfold.cluster.partitioners.PARTITIONERS`
    repair: str  # a row of :data:`REPAIRS`
    inputs: str  # what the network is run on where that is needed, see :mod:`onnxfold.inputs.model_inputs`
    summary: str  # one line for the help text
    only_streams: bool = False  # whether groups but residual streams keep their widths unless a ratio is given for them
    drops_blocks: bool = False  # whether it drops whole residual blocks, and keeps the widths of all others
    #: The blocks that are folded unless a ratio is given for their groups, from one fraction of the depth to another.
    depth: tuple[float, float] = (0.0, 1.0)
    #: Whether a model that continues texts reads, between those that a user gives, what it writes itself.
    adds_text: bool = False
    language: "Method | None" = None  # what the row is for language models, where that is something else

    @property
    def partitioner(self) -> Partitioner:
        """The row that chooses which channels become one."""
        return find_partitioner(self.cluster)

    @property
    def repair_row(self) -> Repair:
        """The row that repairs after the merge."""
        return REPAIRS[self.repair]

    @property
    def needs_inputs(self) -> bool:
        """Whether the network is run."""
        return self.partitioner.needs_moments or self.repair_row.needs_inputs

    def whole(self, graphs: Sequence[Sequence[FoldGroup]]) -> tuple[list[int], str]:
        """Return the indices of the groups that keep their widths unless a ratio names them, and a note that says so.

        Groups are numbered over all graphs, the main graph first.
        """
        groups = [group for graph_groups in graphs for group in graph_groups]
        if self.only_streams:
            kept = [i for i, group in enumerate(groups) if not group.norms]
            what = f"{self.name} rotates residual streams only"
        else:
            kept = outside(graphs[0], *self.depth)
            what = "{} folds a language model, as published, from {:.0%} to {:.0%} of its depth"
            what = what.format(self.name, *self.depth)
        if not kept:
            return [], ""
        return kept, f"{what}: {len(kept)} of {len(groups)} groups keep their width unless --ratio names them"

    @property
    def is_supported(self) -> bool:
        """Whether the repair finds what it restores."""
        return self.partitioner.averages or not self.repair_row.needs_averages

    def form(self, *, is_language: bool) -> "Method":
        """Return the form of the row for language models, or for others."""
        return self.language if is_language and self.language is not None else self

    def compose(self, cluster: str | None, repair: str | None) -> "Method":
        """Return the row with another clustering or repair where one is given, in every form."""
        language = None if self.language is None else self.language.compose(cluster, repair)
        return replace(self, cluster=cluster or self.cluster, repair=repair or self.repair, language=language)

    def possible(self, *, moments: bool, inputs: bool, rotates: bool = False) -> "Method":
        """Return the closest method that needs no more than is there; the only fallback.

        There may be `moments` of what the consumers of a group see, and `inputs` to run the graph; `rotates` says
        whether the channels of the group are there to be rotated.
        """
        if rotates and self.partitioner.rotates:
            return replace(self, cluster=ROTATION).possible(moments=moments, inputs=inputs)
        cluster = self.cluster
        if self.partitioner.needs_moments and not moments:
            cluster = "kmeans" if self.partitioner.averages else SELECTION
        if inputs or not self.repair_row.needs_inputs:
            return replace(self, cluster=cluster)
        stand_ins = (replace(self, cluster=cluster, repair=name) for name in STAND_IN_REPAIRS)
        return next(method for method in stand_ins if method.is_supported)


METHODS = {
    m.name: m
    for m in (
        Method("fold-ls", "elimination", "least-squares", "auto", "drop or merge, refit by least squares (no data)",
               adds_text=True),
        Method("fold-ar", "kmeans", "approximate", "auto", "k-means, mean, approximate repair from weights (no data)",
               # The published recipe for LLaMA: k-means of gate and up rows beside down columns, and of whole heads,
               # which are averaged like channels; no repair.
               language=Method("fold-ar", "kmeans-heads", "none", "auto", "k-means of channels and of heads, mean",
                               depth=(FOLD_AR_START, FOLD_AR_STOP))),
        Method("fold-naive", "kmeans", "none", "auto", "k-means, mean, no repair"),
        Method("fold-r", "kmeans", "recalibrate", "data", "k-means, mean, statistics from your data (--calibration)"),
        Method("fold-dir", "kmeans", "recalibrate", "deep-inversion", "fold-r on inverted images (needs torch)"),
        Method("prune-l1", "top-l1", "none", "auto", "keep the channels with the largest L1 norm"),
        Method("prune-l2", "top-l2", "none", "auto", "keep the channels with the largest L2 norm"),
        Method("wanda-sp", "wanda", "none", "auto", "keep the channels with the largest weights times activations"),
        Method("flap", "flap", "bias", "auto", "keep the channels that fluctuate most, means become biases"),
        Method("ifm", "ifm", "independent", "auto", "iterative feature merging"),
        Method("inn", "inn", "none", "auto", "integral neural networks: channels resampled on a smooth order"),
        Method("slicegpt", "streams", "none", "auto", "rotate residual streams, keep their leading principal axes",
               only_streams=True),
        Method("shortgpt", "elimination", "none", "auto", "drop the blocks that change their stream least",
               drops_blocks=True),
    )
}  # fmt: skip


def find_method(
    name: str, *, cluster: str | None = None, repair: str | None = None, of_networks: bool = False
) -> Method:
    """Return a method by name, with another clustering or repair where one is given.

    `of_networks` says whether networks are merged, so that the clustering may ask which one a channel comes from.
    """
    if name not in METHODS:
        raise ConfigError(f"method '{name}' is unknown: choose one of {', '.join(METHODS)}")
    if repair is not None and repair not in REPAIRS:
        raise ConfigError(f"repair '{repair}' is unknown: choose one of {', '.join(REPAIRS)}")
    method = METHODS[name]
    if method.drops_blocks and (cluster or repair):
        raise ConfigError(f"method '{name}' drops blocks and merges nothing: leave out cluster and repair")
    method = method.compose(cluster, repair)
    find_partitioner(method.cluster, of_networks=of_networks)
    if not method.is_supported:
        *others, last = (r.name for r in REPAIRS.values() if not r.needs_averages)
        raise ConfigError(
            f"repair '{method.repair}' restores what averaging loses, and cluster '{method.cluster}' averages nothing: "
            f"take {', '.join(others)} or {last}"
        )
    return method
