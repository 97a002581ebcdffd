"""Record of the training of norms."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TuningRecord:
    """The effect of training scales and biases of norms on the answers to held-out inputs.

    Parameters
    ----------
    weights : int
        Entries that were trained.
    steps : int
        Steps of training.
    before, after : float
        What the answers differ from the original's, before and after: of scores the divergence in nats, of others the
        relative squared error.
    kept : bool
        Whether the trained norms were kept: only if the answers came closer.
    """

    weights: int
    steps: int
    before: float
    after: float
    kept: bool

    def __str__(self) -> str:
        work = f"{self.weights:,} scales and biases of norms trained for {self.steps} steps on the original's answers"
        effect = f"held-out divergence {self.before:.4g} -> {self.after:.4g}"
        return f"{work}: {effect}" + ("" if self.kept else "; not kept")
