"""Perplexities of two models on a text."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PerplexityRecord:
    """Perplexities of two language models on the front of a text.

    Parameters
    ----------
    a, b : float
        Perplexity of each model.
    windows : int
        Windows of the text that were read; they do not overlap.
    window : int
        Tokens of each.
    scored : int
        Tokens that were predicted, all windows together.
    text : str
        The text.
    """

    a: float
    b: float
    windows: int
    window: int
    scored: int
    text: str

    def __str__(self) -> str:
        """Return one line."""
        windows = f"{self.windows} windows" if self.windows > 1 else "1 window"
        return (
            f"perplexity {self.a:.4g} -> {self.b:.4g} ({self.b / self.a:.3f} times), on {windows} of {self.window:,} "
            f"tokens of '{self.text}' ({self.scored:,} tokens predicted)"
        )
