"""Closeness of one output of two models, by the kind of answer that it gives."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Fidelity:
    """Closeness of one output of the folded model to the original's.

    Parameters
    ----------
    output : str
        Name of the output.
    relative_error : float
        ||folded - original|| / ||original||, over all elements.
    top1_agreement : float, optional
        Fraction of samples with the same largest entry, for outputs of shape (N, classes); None where there are none
        without NaN.
    top1_interval : pair of float, optional
        Wilson's 95 % confidence interval of the agreement.
    top1_samples : int, optional
        Samples that it was counted over.
    top1_variety : float, optional
        How many classes the original names on these samples, beside as many as evenly drawn ones would name, which is
        about 1; see :func:`onnxfold.fidelity.answer_measures.variety`.
    kind : str
        Kind of answer: 'classes', 'dense', 'detections', 'embedding', 'tokens' or 'regression'. All that follows is
        None where it is not measured for this kind.
    flips : int, optional
        Samples whose largest entry changed.
    snr_db : float, optional
        Signal-to-noise ratio of all elements, in dB.
    pixel_agreement, mean_iou : float, optional
        Fraction of the positions that keep their class, and intersection over union, the mean over the classes.
    boxes_kept : float, optional
        F1 of the boxes with a score above .3, matched at an IoU of .5, where the layout is known.
    decisions_kept : float, optional
        F1 of the scores above .3, at all positions.
    channel_snr_db : float, optional
        Median over the channels of their signal-to-noise ratio about their mean, in dB.
    worst_channels : tuple of pair
        Channels with the lowest, and their ratios.
    cosine, neighbours_kept : float, optional
        Mean cosine of the two vectors of a sample, of every output, and fraction of the samples that keep their nearest
        neighbour.
    kl_divergence : float, optional
        Mean Kullback-Leibler divergence from the original's probabilities of classes or tokens, in nats: of the softmax
        of scores, or of stated probabilities.
    """

    output: str
    relative_error: float
    top1_agreement: float | None = None
    top1_interval: tuple[float, float] | None = None
    top1_samples: int | None = None
    top1_variety: float | None = None
    kind: str = ""
    flips: int | None = None
    snr_db: float | None = None
    pixel_agreement: float | None = None
    mean_iou: float | None = None
    boxes_kept: float | None = None
    decisions_kept: float | None = None
    channel_snr_db: float | None = None
    worst_channels: tuple[tuple[int, float], ...] = ()
    cosine: float | None = None
    neighbours_kept: float | None = None
    kl_divergence: float | None = None

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
        parts += [] if self.kl_divergence is None else [f"KL divergence {self.kl_divergence:.3g} nats"]
        if self.worst_channels:
            worst = ", ".join(f"{channel}: {noise:.1f}" for channel, noise in self.worst_channels)
            parts.append(f"worst channels in dB {worst}")
        return parts

    def __str__(self) -> str:
        """Return the measures of an output in one line."""
        error = self.relative_error
        parts = [f"relative error {error:.3g}" if math.isfinite(error) else "nothing to compare"]
        if self.top1_agreement is not None:
            low, high = self.top1_interval or (None, None)
            sure = "" if low is None else f" (95 % confidence interval {low:.1%} to {high:.1%})"
            parts.append(f"top-1 agreement {self.top1_agreement:.1%}{sure}")
        return f"{self.output}: {', '.join(parts + self.measures)}"
