"""Record of a latency before and after."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LatencyRecord:
    """Latencies of two models in onnxruntime, timed in turn.

    Parameters
    ----------
    before_s, after_s : float
        Median seconds per run of one sample, or of the batch that the model is fixed to.
    ratio : float
        After over before: the median of the ratios within rounds.
    spread : float
        Distance of the quartiles of these ratios, over their median.
    rounds : int
        Number of rounds.
    threads : int
        Threads inside an operator.
    """

    before_s: float
    after_s: float
    ratio: float
    spread: float
    rounds: int
    threads: int

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
    """Return seconds as milliseconds with three digits.

    Examples
    --------
    >>> milliseconds(0.0123456), milliseconds(1.5), milliseconds(2.5e-5)
    ('12.3', '1,500', '0.025')
    """
    ms = seconds * 1e3
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"
