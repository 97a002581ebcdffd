"""The verdict on a model: what it keeps of its original, in one line."""

from dataclasses import dataclass

#: States, from best to worst; nothing is known of the last.
KEPT, DAMAGED, DESTROYED, NOT_KNOWN = "kept", "damaged", "destroyed", "not known"


@dataclass(frozen=True)
class Verdict:
    """The verdict on a model.

    Parameters
    ----------
    state : str
        'kept', 'damaged', 'destroyed' or 'not known'.
    output : str
        The output that decides: the one that keeps least.
    kept : str
        What is kept of it, and of what.
    measured_on : str
        Which inputs that was measured on.
    """

    state: str
    output: str = ""
    kept: str = ""
    measured_on: str = ""

    @property
    def is_destroyed(self) -> bool:
        """Whether nothing useful is left."""
        return self.state == DESTROYED

    def __str__(self) -> str:
        """Return one line."""
        if self.state == NOT_KNOWN:
            return f"verdict: not known: {self.kept}"
        how = "keeps" if self.state == KEPT else f"{self.state}: keeps only"
        return f"verdict: {how} {self.kept}, measured on {self.measured_on}"
