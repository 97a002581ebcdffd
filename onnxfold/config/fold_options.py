"""Options by name, for checkers of types: written by ``python -m docs.generate``, do not edit."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypedDict

from numpy.typing import NDArray


class SharedOptions(TypedDict, total=False):
    """Options that a fold and a merge have by name."""

    ratios: Mapping[str, float]
    device: str | None
    max_params: int | str | None
    max_macs: int | str | None
    max_ram: int | str | None
    max_flash: int | str | None
    method: str
    cluster: str | None
    repair: str | None
    objective: str
    round_to: int | str
    keep: Sequence[str]
    refine: str
    refine_steps: int | None
    inputs: str
    calibration: str | Path | Mapping[str, NDArray[Any]] | None
    samples: int | None
    input_seconds: float | None
    input_steps: Sequence[int]
    mean: float | Sequence[float] | None
    std: float | Sequence[float] | None
    channels: str
    input_shapes: Mapping[str, Sequence[int]]
    dtype: str
    seed: int
    verify: bool
    save_as_external_data: bool
    threads: int
    torch_device: str
    max_memory: int | str | None
    cache: str | PathLike[str] | None


class FoldOptions(SharedOptions, total=False):
    """Options of a fold by name, but the sparsity."""

    lossless: bool
    channel_ratio: float | None
    min_fidelity: float | None
    max_drop: float | None
    data: str | Path | Mapping[str, NDArray[Any]] | None
    max_latency: float | str | None
    tolerance: float
    latency_table: str | Path | Mapping[str, Any] | None
    drop_blocks: int | str | None
    allocation: str
    tokenizer: str | Path | None
    vocabulary: int | str | Path | None
    allow_cache_change: bool
    per_layer_cache: bool


class MergeOptions(SharedOptions, total=False):
    """Options of a merge by name."""

    sparsity: float | None
