"""Records of what a fold did, and of what it costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

#: Sparsities from which a fold is expected to save time, and the part of it that is little in multiply-accumulates.
_WORTH_A_NOTE, _LITTLE = 0.05, 0.25


@dataclass(frozen=True)
class ModelSize:
    """Size of a model.

    `parameters` counts float weights once each; `macs` multiply-accumulates per sample (None where a
    shape is unknown), or per token where a language model leaves lengths open; `size_bytes` the weights and the graph;
    `macs_per` says "sample", "token", or "sample of size 64" where the model leaves other lengths open.
    """

    parameters: int
    macs: int | None
    size_bytes: int
    macs_per: str = "sample"

    @property
    def macs_title(self) -> str:
        """Title of the multiply-accumulates in a table."""
        return "MACs" if self.macs_per == "sample" else f"MACs per {self.macs_per}"

    def sparsity_of(self, folded: "ModelSize") -> float:
        """Return the fraction of these parameters that a folded model no longer has; 0 if there are none."""
        return 1.0 - folded.parameters / self.parameters if self.parameters else 0.0

    def time_notes(self, folded: "ModelSize") -> list[str]:
        """Return a note where a fold saves bytes and hardly any work."""
        weights = self.sparsity_of(folded)
        work = 1.0 - folded.macs / self.macs if self.macs and folded.macs is not None else 1.0
        if weights < _WORTH_A_NOTE or work >= _LITTLE * weights:
            return []
        return [
            f"this fold saves bytes, but hardly any time: {weights:.1%} of the weights and {work:.1%} of the "
            "multiply-accumulates are gone; --objective macs or --max-latency removes more of these"
        ]


@dataclass(frozen=True)
class LatencyRecord:
    """Latencies of two models in onnxruntime, timed in turn."""

    before_s: float  # median seconds per run of one sample, or of the batch that the model is fixed to
    after_s: float
    ratio: float  # after over before: the median of the ratios within rounds
    spread: float  # distance of the quartiles of these ratios, over their median
    rounds: int
    threads: int  # threads inside an operator

    @property
    def is_sure(self) -> bool:
        """Whether the ratio varies little enough to stand in a headline."""
        return self.spread <= 0.1

    @property
    def is_slower(self) -> bool:
        """Whether the second model takes longer than the first by more than the spread."""
        return self.ratio - 1.0 > max(self.spread, 0.0) * self.ratio

    def __str__(self) -> str:
        return (
            f"latency {milliseconds(self.before_s)} -> {milliseconds(self.after_s)} ms, {self.ratio:.2f} of before "
            f"(spread {self.spread:.0%}, {self.how})"
        )

    @property
    def how(self) -> str:
        """How it was measured, in words."""
        threads = f"{self.threads} thread" if self.threads == 1 else f"{self.threads} threads"
        return f"onnxruntime, {threads}, {self.rounds} rounds in turn"


def milliseconds(seconds: float) -> str:
    """Return seconds as milliseconds with three digits: '12.3', '1,500', '0.025'."""
    ms = seconds * 1e3
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"


@dataclass(frozen=True)
class DroppedBlock:
    """Residual branches that went together."""

    name: str  # the first node with a weight matrix
    nodes: tuple[str, ...]  # the same of every branch
    weights: int  # weights that went with it
    #: One minus the mean cosine of the stream before it and behind it, where that chose it.
    influence: float | None = None
    #: What the answers lose without it alone, where that chose it: of scores of words the divergence in nats, of others
    #: the relative error.
    effect: float | None = None
    caches: int = 0  # inputs and outputs of the model that went with it


@dataclass(frozen=True)
class RefinementRecord:
    """The effect of training a folded network on the answers to held-out inputs."""

    what: str  # what was trained: 'all' weights, or scales and biases of 'norms'
    weights: int  # entries that were trained
    steps: int  # steps that were taken
    #: What held-out answers differ from the original's, before and after: of a language model's scores the divergence
    #: in nats, of others the squared error over their variance, added up over outputs.
    loss_before: float
    loss_after: float
    kept: bool  # whether the trained weights were kept: only if the answers came closer
    seconds: float
    note: str = ""  # why not all steps were taken; empty where they were

    def __str__(self) -> str:
        if not self.steps:
            return f"not refined: held-out loss {self.loss_before:.3g}"
        size, unit = next(((s, u) for s, u in ((1e6, "M"), (1e3, "K")) if self.weights >= s), (1.0, ""))
        which = "weights of norms" if self.what == "norms" else "weights"
        trained = f"{self.weights / size:.{1 if unit else 0}f}{unit} {which}"
        end = "kept" if self.kept else "undone: it came no closer"
        losses = f"held-out loss {self.loss_before:.3g} -> {self.loss_after:.3g}"
        return f"refined: {self.steps} steps on {trained}, {losses}, {end}, {self.seconds:.0f} s"


@dataclass(frozen=True)
class MergeMap:
    """How the channels of a group were merged, in a form that grows with their number only.

    With n channels before and k after the fold, producers were multiplied by P (k x n) and consumers by Q (n x k):

        P[c, i] = 1 / (members of cluster c),   Q[i, c] = 1   for every channel i with clusters[i] = c,

    and 0 elsewhere.
    """

    group: str
    #: Cluster of each channel, numbered by first member, which is also the order of the folded channels; -1 for a
    #: channel that was dropped.
    clusters: tuple[int, ...]

    @property
    def P(self) -> Any:  # noqa: N802  # the name of the mathematics
        """The matrix of producers, an ndarray of shape (k, n)."""
        decode = self.Q
        return (decode / decode.sum(axis=0)).T

    @property
    def Q(self) -> Any:  # noqa: N802
        """The matrix of consumers, an ndarray of shape (n, k)."""
        import numpy as np

        return (np.array(self.clusters)[:, None] == np.arange(max(self.clusters) + 1)).astype(np.float64)


#: Bins of a correlation histogram, equally wide, over [-1, 1].
CORRELATION_BINS = 20


@dataclass(frozen=True)
class ErrorCurve:
    """Estimated error of a group by its width."""

    group: str
    widths: tuple[int, ...]  # some of the widths that the group could have, ascending
    errors: tuple[float, ...]  # estimated relative error of the group's consumers, at each of them
    width: int  # the width that was chosen
    error: float  # the estimated error there


@dataclass(frozen=True)
class VarianceRatio:
    """Var(x'_c(i)) / Var(x_i) over the original channels i of a layer, c(i) being the channel that i became part of.

    Near 1 is healthy; below 1 the activations collapse, above 1 they overshoot.
    """

    #: Name of the linear node; where a BatchNormalization alone reads it, the output of that is what was measured.
    layer: str
    mean: float  # mean and quartiles over the channels; NaN where no channel could be compared
    lower: float
    upper: float
    channels: int  # number of channels that were compared
    left_out: int  # number of channels without a ratio: dropped by the fold, or constant on the inputs


@dataclass(frozen=True)
class CorrelationHistogram:
    """Correlations of all pairs of a group's channels, as its first consumer sees them."""

    group: str
    #: Number of pairs in each of `CORRELATION_BINS` bins over [-1, 1], of the original and of the folded network.
    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True)
class Diagnostics:
    """Diagnostics of a fold."""

    error_curves: tuple[ErrorCurve, ...] = ()  # one per group whose curve was computed
    variance_ratios: tuple[VarianceRatio, ...] = ()  # one per layer, in the order of the graph
    correlations: tuple[CorrelationHistogram, ...] = ()  # one per group
    samples: int = 0  # number of samples that both networks were run on
    not_run: str = ""  # why they were not, if so


def join_diagnostics(parts: Sequence[Diagnostics]) -> Diagnostics:
    """Return the diagnostics of several graphs of one model as one."""
    return Diagnostics(
        tuple(curve for part in parts for curve in part.error_curves),
        tuple(ratio for part in parts for ratio in part.variance_ratios),
        tuple(histogram for part in parts for histogram in part.correlations),
        max((part.samples for part in parts), default=0),
        next((part.not_run for part in parts if part.not_run), ""),
    )
