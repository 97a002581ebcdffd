"""The report of a fold: sizes before and after, groups, refusals, fidelity."""

import json
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from onnxfold.report import closeness, records


class RefusalKind(StrEnum):
    """The obstacle that keeps a weight axis."""

    INTERFACE = "interface"
    STREAM = "stream"
    OPERATOR = "operator"


@dataclass(frozen=True)
class Refusal:
    """A weight axis that was left alone, and why."""

    node: str  # the node that owns the weight
    op_type: str
    axis: str  # which of its axes
    reason: str  # the reason, and its place
    weights: int = 0  # number of weights that stay for this reason
    #: What keeps it: the shape of the model's inputs and outputs, a norm over a residual stream, or an operator.
    kind: RefusalKind = RefusalKind.OPERATOR
    weight: str = ""

    def rename(self, node: str, weight: str) -> "Refusal":
        """Return the same of a node and a weight with other names."""
        axis = self.axis.replace(f"'{self.weight}'", f"'{weight}'")
        return replace(self, node=node, axis=axis, weight=weight)


@dataclass(frozen=True)
class PassRecord:
    """Record of one pass."""

    name: str
    modified: bool
    seconds: float


#: A model that gives fewer of the original's answers than this is of no use.
_USELESS = 0.2
#: The clustering of a group of which only exact duplicates were merged.
ONLY_DUPLICATES = "duplicates"


@dataclass(frozen=True)
class GroupRecord:
    """One fold group before and after."""

    name: str
    width: int  # channels before and after
    folded_width: int
    nodes: tuple[str, ...]  # nodes that produce its channels
    duplicates: int  # channels that are exact duplicates of another one
    requested_cluster: str = ""  # the requested clustering and repair
    requested_repair: str = ""
    #: Those that were used: others where the graph cannot be run by itself; :data:`ONLY_DUPLICATES` and 'none' where
    #: only exact duplicates were merged; empty where the group keeps its width.
    cluster: str = ""
    repair: str = ""

    @property
    def fell_back(self) -> bool:
        """Whether another clustering or repair was used than the requested one; merged duplicates need no repair."""
        used, asked = (self.cluster, self.repair), (self.requested_cluster, self.requested_repair)
        return used not in (("", ""), (ONLY_DUPLICATES, "none"), asked)

    @property
    def is_lossy(self) -> bool:
        """Whether more than exact duplicates were merged."""
        return self.cluster not in ("", ONLY_DUPLICATES)


@dataclass(frozen=True)
class InputRecord:
    """Inputs that the network was run on: kind, number, reason, and inversion steps per batch."""

    kind: str
    samples: int
    reason: str
    steps: tuple[int, ...] = ()

    @property
    def are_data(self) -> bool:
        """Whether they are samples of a user."""
        return self.kind == "data"


@dataclass(frozen=True)
class QuantizationRecord:
    """How the folded model was quantised."""

    dtype: str  # type of the weights
    weights: int  # entries of weights that are stored in it; biases, in int32, are among them
    float_weights: int  # entries that stay float32
    folded_bytes: int  # size of the folded model before it was quantised

    def __str__(self) -> str:
        share = f"{self.weights:,} of {self.weights + self.float_weights:,} weights"
        return f"quantised to {self.dtype}: {share}, {self.folded_bytes:,} bytes before"


@dataclass(frozen=True)
class AccuracyRecord:
    """Top-1 accuracies on labelled samples that the fold was not fitted on, and that decided how far it goes."""

    before: float  # accuracies in [0, 1]
    after: float
    samples: int
    drop: float  # what was lost, in points
    interval: tuple[float, float]  # its 95 % confidence interval, in points; both models answered the same samples
    most_drop: float  # the requested limit, in points
    flips: closeness.LabelFlips | None = None  # answers that became wrong and right

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"accuracy {self.before:.2%} -> {self.after:.2%} on {self.samples} held-out samples: {self.drop:.2f} "
            f"points lost (95 % confidence interval {low:.2f} to {high:.2f}), at most {self.most_drop:g} were allowed"
            f"{'' if self.flips is None else f'; {self.flips}'}"
        )


@dataclass
class FoldOutline:
    """The request of a fold, the costs before and after it, and what it did."""

    method: str
    allocation: str
    requested: str
    before: records.ModelSize
    after: records.ModelSize
    groups: list[GroupRecord]
    refusals: list[Refusal]
    passes: list[PassRecord] = field(default_factory=list)


@dataclass
class FoldMeasures(FoldOutline):
    """How channels were chosen, the inputs that the networks were run on, and how close the result is."""

    cluster: str = ""
    repair: str = ""
    inputs: InputRecord | None = None
    quantization: QuantizationRecord | None = None
    fidelity: closeness.FidelityReport | None = None
    accuracy: AccuracyRecord | None = None
    estimate: closeness.AgreementEstimate | None = None
    not_estimated: str = ""
    fidelity_on_samples: closeness.FidelityReport | None = None


@dataclass
class FoldRun(FoldMeasures):
    """The run that made the result, so that it can be repeated, and what it measured on the way."""

    notes: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    version: str = ""
    model: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    diagnostics: records.Diagnostics = field(default_factory=records.Diagnostics)
    latency: records.LatencyRecord | None = None
    latency_table: dict[str, Any] | None = None


@dataclass
class FoldReport(FoldRun):
    """Record of one fold.

    Sparsity is the fraction of the input file's weights that the folded model no longer has, before it is quantised.
    """

    merge_map: list[records.MergeMap] = field(default_factory=list)
    dropped: list[records.DroppedBlock] = field(default_factory=list)
    merged: closeness.MergeRecord | None = None
    refinement: records.RefinementRecord | None = None
    model_sha256: str = ""
    verdict: closeness.Verdict = closeness.NOT_VERIFIED
    #: A PNG file of some of the images that the network was run on, for pages; no part of the JSON report.
    picture: bytes = field(default=b"", repr=False)

    @property
    def sparsity(self) -> float:
        """Fraction of the weights removed."""
        return self.before.sparsity_of(self.after)

    @property
    def warning(self) -> str:
        """Advice about a model that will be of no use, in one line; empty for others, and where nothing is known.

        Decisive is the estimated agreement; where there is none, the lowest agreement on held-out inputs.
        """
        outputs = [] if self.fidelity is None else self.fidelity.outputs
        agreement = min((o.top1_agreement for o in outputs if o.top1_agreement is not None), default=1.0)
        called = "agreement on generated inputs"
        if self.estimate is not None:
            agreement, called = self.estimate.agreement, "estimated agreement"
        if agreement >= _USELESS:
            return ""
        has_data = self.inputs is not None and self.inputs.are_data
        more = "" if has_data else ", or give unlabeled samples with --calibration"
        return f"{called} below {100 * _USELESS:.0f} %: ask for less{more}"

    @property
    def estimate_line(self) -> str:
        """The estimated agreement on data, or why it is not known; empty where no output names classes."""
        if self.estimate is not None:
            return str(self.estimate)
        return f"estimated agreement on data: not known: {self.not_estimated}" if self.not_estimated else ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        values = asdict(self)
        del values["picture"]
        return {"schema": closeness.SCHEMA, "sparsity": self.sparsity, "warning": self.warning, **values}

    def to_json(self) -> str:
        """Return the report as JSON text."""
        return json.dumps(closeness.finite(self.to_dict()), indent=2, allow_nan=False, default=str) + "\n"

    @property
    def fallbacks(self) -> list[str]:
        """Notes on groups for which another clustering or repair was used than the requested one."""
        counts = Counter((g.cluster, g.repair) for g in self.groups if g.fell_back)
        folded = sum(g.folded_width < g.width for g in self.groups)
        return [
            f"{count} of {folded} folded groups: cluster {cluster} and repair {repair} instead of {self.cluster} and "
            f"{self.repair}, because their consumers could not be run node by node"
            for (cluster, repair), count in counts.items()
        ]

    def __str__(self) -> str:
        macs, left = self.before.macs, self.after.macs
        removed = f" ({1 - left / macs:.1%} removed)" if macs and left is not None else ""
        merged = "" if self.merged is None else self.merged.beside_one
        parts = (self.estimate_line, self.latency, merged, self.refinement, self.quantization, self.warning)
        lines = [
            str(self.verdict),
            f"{self.method}, {self.allocation} allocation, {self.requested}",
            f"weights {self.before.parameters:,} -> {self.after.parameters:,} ({self.sparsity:.1%} removed)",
            *([] if None in (macs, left) else [f"{self.before.macs_title} {macs:,} -> {left:,}{removed}"]),
            f"{sum(g.folded_width < g.width for g in self.groups)} of {len(self.groups)} groups folded, "
            f"{len(self.refusals)} weight axes left alone",
            *(str(part) for part in parts if part),
        ]
        return "\n".join(lines + self.notes)
