"""Closeness of two models: measures of every output, what they are worth, and what they say about data."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from onnxfold.report.records import LatencyRecord, milliseconds

#: Version of the JSON form of reports; it grows where a field goes or means something else.
SCHEMA = 1


@dataclass(frozen=True)
class Fidelity:
    """Closeness of one output to the original's; None where its kind of answer has no such measure."""

    output: str
    relative_error: float  # ||folded - original|| / ||original||, over all elements
    #: Fraction of samples with the same largest entry, for outputs of shape (N, classes); None where there are none
    #: without NaN.
    top1_agreement: float | None = None
    top1_interval: tuple[float, float] | None = None  # Wilson's 95 % confidence interval of the agreement
    top1_samples: int | None = None  # samples that it was counted over
    #: How many classes the original names on these samples, beside as many as evenly drawn ones would name, which is
    #: about 1; see :func:`onnxfold.fidelity.answer_measures.variety`.
    top1_variety: float | None = None
    #: Share of the original's answers that name its most frequent class, of maps that of their positions.
    most_frequent: float | None = None
    rare_agreement: float | None = None  # agreement on all other classes, where most answers name this one
    #: Kind of answer: 'classes', 'dense', 'detections', 'embedding', 'numbered' (classes without scores), 'tokens' or
    #: 'regression'.
    kind: str = ""
    flips: int | None = None  # samples whose largest entry changed
    #: The agreement expected where answers are as sure as on all given samples, not on those alone that are held out.
    expected_agreement: float | None = None
    #: Signal-to-noise ratio of all elements about their means over the samples, in dB: 0 for a constant answer.
    snr_db: float | None = None
    is_constant: bool = False  # whether the original gives every sample the same values
    #: Agreement of two networks that name their classes as often as these two, and regardless of the sample.
    chance_agreement: float | None = None
    #: Mean Kullback-Leibler divergence from the original's probabilities of classes or tokens, in nats: of the softmax
    #: of scores, or of stated probabilities.
    kl_divergence: float | None = None
    #: Of tokens, its median, the value that it exceeds at one position in 100, and its maximum.
    kl_quantiles: tuple[float, float, float] | None = None
    #: Classes that the original names on 20 samples or more: the class, how many samples keep it, and how many there
    #: are.
    class_agreement: tuple[tuple[int, int, int], ...] = ()
    #: Fraction of the positions that keep their class, and intersection over union, the mean over the classes.
    pixel_agreement: float | None = None
    mean_iou: float | None = None
    #: F1 of the boxes with a score above .3, matched at an IoU of .5, where the layout is known.
    boxes_kept: float | None = None
    decisions_kept: float | None = None  # F1 of the scores above .3, at all positions
    #: Median over the channels of their signal-to-noise ratio about their mean, in dB.
    channel_snr_db: float | None = None
    worst_channels: tuple[tuple[int, float], ...] = ()  # channels with the lowest, and their ratios
    #: Mean cosine of the two vectors of a sample, of every output, and fraction of the samples that keep their nearest
    #: neighbour.
    cosine: float | None = None
    neighbours_kept: float | None = None

    @property
    def error_of_variation(self) -> float:
        """The norm of the error, relative to that of the original's deviations from its means over the samples."""
        return self.relative_error if self.snr_db is None else 10.0 ** (-self.snr_db / 20.0)

    @property
    def says_nothing(self) -> bool:
        """Whether a good model and a bad one are as close: the original gives no numbers, or always the same ones."""
        return math.isnan(self.relative_error) or (self.is_constant and self.relative_error == 0.0)

    @property
    def measures(self) -> list[str]:
        """Measures of this kind of answer beside the relative error and the agreement, in words."""
        parts = []
        if self.top1_agreement is None and self.snr_db is not None and math.isfinite(self.snr_db):
            parts.append(f"SNR {self.snr_db:.1f} dB")
        shares = {
            "positions with the same class": self.pixel_agreement, "mean IoU": self.mean_iou,
            "boxes kept": self.boxes_kept, "decisions kept": self.decisions_kept,
            "nearest neighbours kept": self.neighbours_kept,
        }  # fmt: skip
        parts += [f"{what} {share:.1%}" for what, share in shares.items() if share is not None]
        parts += [f"cosine {self.cosine:.4f}"] if self.cosine is not None and self.top1_agreement is None else []
        if self.kl_divergence is not None:
            parts.append(f"KL divergence {self.kl_divergence:.3g} nats")
        if self.kl_quantiles is not None:
            parts[-1] += " (median {:.3g}, 99 % {:.3g}, maximum {:.3g})".format(*self.kl_quantiles)
        worst_class, kept, count = min(self.class_agreement, key=lambda entry: entry[1] / entry[2], default=(0, 0, 0))
        if kept < count:
            parts.append(f"worst class {worst_class}: {kept / count:.1%} of {count} samples")
        if self.worst_channels:
            worst = ", ".join(f"{channel}: {noise:.1f}" for channel, noise in self.worst_channels)
            parts.append(f"worst channels in dB {worst}")
        return parts

    def __str__(self) -> str:
        error = self.relative_error
        parts = [f"relative error {error:.3g}" if math.isfinite(error) else "nothing to compare"]
        parts += ["the same for every sample"] if self.is_constant else []
        if self.top1_agreement is not None:
            low, high = self.top1_interval or (None, None)
            sure = "" if low is None else f" (95 % confidence interval {low:.1%} to {high:.1%})"
            called = "same top token" if self.kind == "tokens" else "top-1 agreement"
            parts.append(f"{called} {self.top1_agreement:.1%}{sure}")
        return f"{self.output}: {', '.join(parts + self.measures)}"


@dataclass(frozen=True)
class PerplexityRecord:
    """Perplexities of two language models on a text, and what else they lose there."""

    a: float  # perplexity of each model
    b: float
    windows: int  # windows, or sequences, of the text that were read; they do not overlap
    window: int  # tokens of each
    scored: int  # tokens that were predicted, all windows together
    text: str
    #: Standard error of b / a. Both models predicted the same tokens, so it is far below those of a and b.
    ratio_error: float = 0.0
    #: Of both models; None where no tokenizer says how many bytes the tokens are.
    bits_per_byte: tuple[float, float] | None = None
    #: Share of the 4-grams of each model's greedy texts that came before in the same text; None where not measured.
    repeated: tuple[float, float] | None = None

    @property
    def lines(self) -> list[str]:
        """One line on what was read, and one on what was written."""
        windows = f"{self.windows} windows" if self.windows > 1 else "1 window"
        bits = "" if self.bits_per_byte is None else ", bits per byte {:.4f} -> {:.4f}".format(*self.bits_per_byte)
        read = (
            f"perplexity {self.a:.4g} -> {self.b:.4g} ({self.b / self.a:.4f} ± {self.ratio_error:.4f} times){bits}, "
            f"on {windows} of {self.window:,} tokens of {self.text} ({self.scored:,} tokens predicted)"
        )
        if self.repeated is None:
            return [read]
        return [read, "loop rate (4-grams that come again in greedy texts) {:.1%} -> {:.1%}".format(*self.repeated)]


@dataclass(frozen=True)
class LabelFlips:
    """Labelled samples that only one of two models answers rightly."""

    lost: int  # samples that only the first, and only the second model answers rightly
    won: int
    #: Of McNemar's exact test: how likely a difference of this size or more is if both models were equally good.
    p_value: float

    def __str__(self) -> str:
        return f"{self.lost} right answers lost, {self.won} won (McNemar's exact test: p = {self.p_value:.2g})"


@dataclass(frozen=True)
class FidelityReport:
    """Comparison of two models on the same inputs."""

    outputs: list[Fidelity]  # one per output
    samples: int
    inputs: str  # their kind: 'held-out dead leaves', 'given data', ...
    accuracy_a: float | None = None  # accuracies in [0, 1], where labels were given
    accuracy_b: float | None = None
    notes: list[str] = field(default_factory=list)  # what could not be compared
    is_generated: bool = False  # whether this program made the inputs
    perplexity: PerplexityRecord | None = None  # perplexities, of networks that continue texts
    flips: LabelFlips | None = None  # answers that became wrong and right, where labels were given

    @property
    def lines(self) -> list[str]:
        """The measures over all outputs, in words."""
        lines = [] if self.perplexity is None else self.perplexity.lines
        if self.accuracy_a is not None and self.accuracy_b is not None:
            lines.append(f"accuracy {self.accuracy_a:.2%} -> {self.accuracy_b:.2%}")
        return lines + ([] if self.flips is None else [str(self.flips)])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; None where a number is not finite."""
        return dict(finite({"schema": SCHEMA, **asdict(self)}))


#: States, from best to worst; nothing is known of the last.
KEPT, DAMAGED, DESTROYED, NOT_KNOWN = "kept", "damaged", "destroyed", "not known"


@dataclass(frozen=True)
class Verdict:
    """The verdict on a model."""

    state: str  # 'kept', 'damaged', 'destroyed' or 'not known'
    output: str = ""  # the output that decides: the one that keeps least
    kept: str = ""  # what is kept of it, and of what
    measured_on: str = ""  # which inputs that was measured on
    only_generated: bool = False  # whether these were made by this program, and nothing says what holds on real ones

    @property
    def is_destroyed(self) -> bool:
        """Whether nothing useful is left."""
        return self.state == DESTROYED

    def __str__(self) -> str:
        if self.state == NOT_KNOWN:
            return f"verdict: not known: {self.kept}"
        how = "keeps" if self.state == KEPT else f"{self.state}: keeps only"
        unseen = " (real inputs were not seen)" if self.only_generated else ""
        return f"verdict: {how} {self.kept}, measured on {self.measured_on}{unseen}"


NOT_VERIFIED = Verdict(NOT_KNOWN, kept="not verified")


@dataclass(frozen=True)
class Signs:
    """Signs that an estimate is made from; all are known at the end of a fold."""

    inputs: str  # kind of the inputs that the fold was fitted on: 'deep-inversion', 'dead-leaves' or 'data'
    #: Fraction of held-out inputs on which the output keeps its largest entry: of a user's samples where the fold was
    #: fitted on such, else of generated inputs.
    held_out_agreement: float
    held_out_samples: int  # how many these are
    held_out_error: float  # relative error of the output on them
    #: Sum over the groups of the relative errors that their error curves have at the chosen widths; None where no
    #: curves were computed.
    curve_error: float | None = None
    #: How many classes the original names on them; see :func:`onnxfold.fidelity.answer_measures.variety`.
    variety: float = 1.0
    most_frequent: float = 0.0  # share of the class that it names most often


@dataclass(frozen=True)
class AgreementEstimate:
    """Estimated top-1 agreement with the original on data, for an output that names classes."""

    output: str
    agreement: float  # the estimate, in [0, 1]
    interval: tuple[float, float]  # it holds the agreement in 80 % of cases
    signs: Signs  # what it was made from

    def __str__(self) -> str:
        low, high = self.interval
        return f"estimated agreement on data {self.agreement:.0%} (80 % interval {low:.0%} to {high:.0%})"


@dataclass(frozen=True)
class NetworkShare:
    """One of the networks."""

    name: str  # its file, or its number
    #: Closeness of the outputs that stand for its own, on held-out generated inputs; None where it was not measured.
    fidelity: FidelityReport | None = None
    verdict: Verdict | None = None  # what is kept of it

    def __str__(self) -> str:
        if self.fidelity is None or self.verdict is None:
            return f"{self.name}: not measured"
        return f"{self.name}, {self.verdict} ({'; '.join(map(str, self.fidelity.outputs))})"


@dataclass(frozen=True)
class MergeRecord:
    """Networks in one model."""

    heads: tuple[str, ...]  # how each output was joined
    networks: tuple[NetworkShare, ...]
    #: Of the first network alone, and of the model; the report's own compares it with all networks beside each other.
    latency: LatencyRecord | None = None

    @property
    def beside_one(self) -> str:
        """The latency beside that of one network, in words; empty where it was not measured."""
        if self.latency is None:
            return ""
        times = f"{milliseconds(self.latency.before_s)} -> {milliseconds(self.latency.after_s)} ms"
        how = f"spread {self.latency.spread:.0%}, {self.latency.how}"
        return f"latency beside {self.networks[0].name} alone: {times}, {self.latency.ratio:.2f} of it ({how})"


def finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have, by None."""
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
