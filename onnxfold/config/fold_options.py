"""Options by name, for checkers of types: written by ``python -m docs.generate``, do not edit."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypedDict

from numpy.typing import NDArray


class FoldOptions(TypedDict, total=False):
    """Options of a fold by name, but the sparsity."""

    lossless: bool
    channel_ratio: float | None
    ratios: Mapping[str, float]
    min_fidelity: float | None
    max_drop: float | None
    data: str | Path | Mapping[str, NDArray[Any]] | None
    max_latency: float | str | None
    tolerance: float
    latency_table: str | Path | Mapping[str, Any] | None
    device: str | None
    max_params: int | str | None
    max_macs: int | str | None
    max_ram: int | str | None
    max_flash: int | str | None
    drop_blocks: int | str | None
    method: str
    cluster: str | None
    repair: str | None
    allocation: str
    objective: str
    round_to: int | str
    keep: Sequence[str]
    tune_norms: bool
    inputs: str
    calibration: str | Path | Mapping[str, NDArray[Any]] | None
    samples: int | None
    input_seconds: float | None
    input_steps: Sequence[int]
    mean: float | Sequence[float] | None
    std: float | Sequence[float] | None
    channels: str
    input_shapes: Mapping[str, Sequence[int]]
    tokenizer: str | Path | None
    allow_cache_change: bool
    per_layer_cache: bool
    inside_heads: bool
    dtype: str
    seed: int
    verify: bool
    merge_map: bool
    save_as_external_data: bool
    threads: int
    max_memory: int | str | None
    cache: str | PathLike[str] | None


class MergeOptions(TypedDict, total=False):
    """Options of a merge by name."""

    sparsity: float | None
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
    max_memory: int | str | None
    cache: str | PathLike[str] | None
