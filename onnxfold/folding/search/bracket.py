"""A bracket around the sparsity at which a margin runs out: regula falsi, bisected where that is slow.

Every point costs a fold, so that a bisection, which knows no more of a point than on which side it lies, takes too
many. The Illinois form (M. Dowell, P. Jarratt, "A modified regula falsi method for computing the root of an equation",
BIT 11, 1971) halves the margin of an end that stays, so that this end moves, too. Margins of folds are noisy and have
steps: where two points together do not halve the bracket, the next one is its middle.
"""

from dataclasses import dataclass, replace

#: Part of the bracket that a point keeps from its ends.
_INSET = 0.1
_TINY = 1e-12


@dataclass(frozen=True)
class Bracket:
    """Sparsities on both sides of the largest one at which the criterion holds."""

    low: float  # A sparsity at which it is kept, and one at which it is not
    high: float
    spare: float  # margin at `low`, at least 0
    lack: float | None = None  # what is missing at `high`, above 0; None where no fold could tell
    moved: str = ""  # which end moved last, '' at the beginning
    widths: tuple[float, ...] = ()  # widths of the brackets before, the last one last

    @property
    def width(self) -> float:
        """Distance of the ends."""
        return self.high - self.low

    @property
    def point(self) -> float:
        """The sparsity to try next, inside the bracket."""
        slow = len(self.widths) >= 2 and self.width > self.widths[-2] / 2
        if self.lack is None or slow:
            return self.low + self.width / 2
        share = self.spare / max(self.spare + self.lack, _TINY)
        return self.low + self.width * min(max(share, _INSET), 1.0 - _INSET)

    def kept_at(self, sparsity: float, spare: float) -> "Bracket":
        """Return the bracket after a fold for which the criterion holds, with a margin."""
        lack = None if self.lack is None else self._stays(self.lack, "low")
        return replace(self, low=sparsity, spare=max(spare, 0.0), lack=lack, moved="low", widths=self._widths)

    def lost_at(self, sparsity: float, lack: float | None) -> "Bracket":
        """Return the bracket after a fold that does not, or cannot be made."""
        spare = self._stays(self.spare, "high")
        return replace(self, high=sparsity, lack=lack, spare=spare, moved="high", widths=self._widths)

    def _stays(self, margin: float, moved: str) -> float:
        """Return the margin that counts for an end that stays: half if it stayed before."""
        return margin / 2 if self.moved == moved else margin

    @property
    def _widths(self) -> tuple[float, ...]:
        return (*self.widths, self.width)
