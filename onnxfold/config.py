"""What the user asks for, validated once."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from onnxfold.errors import ConfigError

ALLOCATIONS = ("uniform",)


@dataclass(frozen=True, kw_only=True)
class FoldConfig:
    """One folding request.

    Parameters
    ----------
    sparsity : float, optional
        Fraction of the model's weights to remove, strictly between 0 and 1. Solved for to within one
        percentage point. Exclusive with `channel_ratio`; 0.5 where neither is given.
    channel_ratio : float, optional
        Fraction of the channels removed from every fold group, in [0, 1).
    ratios : mapping of str to float
        Channel ratio of the groups that have a node matching the glob, in [0, 1); 0 keeps a group whole.
        These groups take no part in the allocation.
    method : str
        A row of :data:`onnxfold.passes.methods.METHODS`.
    allocation : {'uniform'}
        How widths are chosen: 'uniform' gives every group the same channel ratio.
    round_to : int
        Widths are multiples of this where the group is wide enough.
    keep : sequence of str
        Globs; groups that have a matching node are kept whole.
    input_shapes : mapping of str to sequence of int
        Fixes symbolic dimensions of the model's inputs for the analysis.
    seed : int
        Seed of everything random.
    verify : bool
        Run original and folded model in onnxruntime before anything is written.
    save_as_external_data : bool
        Write the weights beside the model, in ``<name>.data``.

    Raises
    ------
    ConfigError
        If a value makes no sense.
    """

    sparsity: float | None = None
    channel_ratio: float | None = None
    ratios: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    method: str = "fold-ar"
    allocation: str = "uniform"
    round_to: int = 1
    keep: Sequence[str] = ()
    input_shapes: Mapping[str, Sequence[int]] = field(default_factory=lambda: MappingProxyType({}))
    seed: int = 0
    verify: bool = True
    save_as_external_data: bool = False

    def __post_init__(self) -> None:
        if self.sparsity is not None and self.channel_ratio is not None:
            raise ConfigError("sparsity and channel_ratio exclude each other: give one of them")
        if self.sparsity is None and self.channel_ratio is None:
            object.__setattr__(self, "sparsity", 0.5)
        if self.sparsity is not None and not _between(self.sparsity, 0.0, 1.0, open_left=True):
            raise ConfigError(
                f"sparsity={self.sparsity} is outside (0, 1): it is the fraction of the weights to remove"
            )
        if self.channel_ratio is not None and not _between(self.channel_ratio, 0.0, 1.0, open_left=False):
            raise ConfigError(
                f"channel_ratio={self.channel_ratio} is outside [0, 1): it is the fraction of channels to remove"
            )
        for glob, ratio in self.ratios.items():
            if not _between(ratio, 0.0, 1.0, open_left=False):
                raise ConfigError(f"ratio {glob}={ratio} is outside [0, 1)")
        if self.allocation not in ALLOCATIONS:
            raise ConfigError(f"allocation='{self.allocation}' is not one of: {', '.join(ALLOCATIONS)}")
        if self.round_to < 1:
            raise ConfigError(f"round_to={self.round_to} must be at least 1")
        if self.seed < 0:
            raise ConfigError(f"seed={self.seed} must not be negative")
        for name, shape in self.input_shapes.items():
            if any(d < 1 for d in shape):
                raise ConfigError(f"input_shapes {name}={list(shape)}: every dimension must be at least 1")

    def to_dict(self) -> dict[str, Any]:
        """Return the request as plain values, for reports and provenance."""
        return {
            "sparsity": self.sparsity,
            "channel_ratio": self.channel_ratio,
            "ratios": dict(self.ratios),
            "method": self.method,
            "allocation": self.allocation,
            "round_to": self.round_to,
            "keep": list(self.keep),
            "input_shapes": {k: list(v) for k, v in self.input_shapes.items()},
            "seed": self.seed,
        }


def _between(value: float, low: float, high: float, *, open_left: bool) -> bool:
    if not math.isfinite(value):
        return False
    return (low < value if open_left else low <= value) and value < high
