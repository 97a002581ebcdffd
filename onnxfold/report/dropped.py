"""Record of blocks that were dropped."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DroppedBlock:
    """Residual branches that went together.

    Parameters
    ----------
    name : str
        The first node with a weight matrix.
    nodes : tuple of str
        The same of every branch.
    weights : int
        Weights that went with it.
    influence : float, optional
        One minus the mean cosine of the stream before it and behind it, where that chose it.
    effect : float, optional
        What the answers lose without it alone, where that chose it: of scores of words the divergence in nats, of
        others the relative error.
    caches : int
        Inputs and outputs of the model that went with it.
    """

    name: str
    nodes: tuple[str, ...]
    weights: int
    influence: float | None = None
    effect: float | None = None
    caches: int = 0
