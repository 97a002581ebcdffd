"""A row of the coverage table: one architecture in one form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

SPARSITY: Final = 0.3
TOLERANCE: Final = 1e-4
ENOUGH: Final = 0.9
#: What of a language model's weights should be in groups, its vocabulary aside.
MOST: Final = 0.95
STEPS: Final = ("export", "original", "inspect", "fold", "lossless")


@dataclass
class Row:
    """One architecture in one form; None where a step did not get that far.

    `errors` maps the step to its one-line text, `traces` to the end of the traceback. `held` lists the reasons for
    which weights lie in no group on either side, with their share of all conv/linear weights. `without_words` is the
    share on either side for language models, their vocabulary and what a cache holds aside.
    """

    name: str
    form: str
    weights: int = 0
    groups: int = 0
    outputs: float | None = None
    inputs: float | None = None
    either: float | None = None
    without_words: float | None = None
    reached: float | None = None
    noise_error: float | None = None
    valid: bool | None = None
    normalised: float | None = None
    widened: float | None = None
    lossless: float | None = None
    uneven: float | None = None
    static_batch: bool = False
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    held: list[tuple[str, float]] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    traces: dict[str, str] = field(default_factory=dict)

    @property
    def is_lossless(self) -> bool | None:
        """Whether folding undid the widening, even and uneven; None if that was not tried."""
        return None if self.lossless is None else max(self.lossless, self.uneven or 0.0) <= TOLERANCE
