"""Losses on a text and on labelled samples, in the measures of those who use such networks."""

from dataclasses import dataclass


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
    #: Share of the 4-grams of each model's greedy texts that came before in the same text; None where not
    #: measured.
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
    #: Of McNemar's exact test: how likely a difference of this size or more is if both models were equally
    #: good.
    p_value: float

    def __str__(self) -> str:
        return f"{self.lost} right answers lost, {self.won} won (McNemar's exact test: p = {self.p_value:.2g})"
