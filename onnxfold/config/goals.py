"""A request as a whole: goals that exclude each other, and the request in words and as plain values."""

import json
from collections.abc import Mapping
from hashlib import sha256
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from onnxfold.config.option import ALWAYS, CHANGED, Option
from onnxfold.config.values import FAITHFUL, MOST_REMOVED
from onnxfold.errors import ConfigError

if TYPE_CHECKING:
    from onnxfold.config.fold_config import FoldConfig

#: Limits by the name of their option, `max_<name>`.
LIMITS = ("params", "macs", "ram", "flash")
#: Options that are recorded together, where latency decides.
_OF_LATENCY = ("max_latency", "latency_table", "threads")
#: Options that mean nothing without a refinement.
OF_REFINEMENT = ("refine_steps", "torch_device")


def check_goals(config: "FoldConfig") -> None:
    """Refuse goals that exclude each other, and options that change nothing without another one."""
    idle = [n for n in OF_REFINEMENT if not config.refines and getattr(config, n) != getattr(type(config), n)]
    beside = _beside_lossless(config) if config.lossless else []
    widths = config.sparsity is not None or config.channel_ratio is not None
    faults: list[tuple[object, str]] = [
        (config.latency_table is not None and not config.needs_latency,
         "latency_table changes nothing without max_latency or objective 'latency'"),
        (idle, f"{', '.join(idle)} changes nothing without refine"),
        (config.per_layer_cache and not config.allow_cache_change,
         "per_layer_cache changes nothing without allow_cache_change"),
        (config.vocabulary is not None and config.tokenizer is not None,
         "vocabulary changes the tokenizer.json in the folder: leave tokenizer out"),
        (beside, f"lossless removes only what changes no output: give it without {', '.join(beside)}"),
        (config.sparsity is not None and config.channel_ratio is not None,
         "sparsity and channel_ratio exclude each other: give one of them"),
        (config.min_fidelity is not None and config.max_drop is not None,
         "min_fidelity and max_drop exclude each other: give one of them"),
        (config.search_option and (widths or config.has_limits),
         f"{config.search_option} decides how far to fold: give it without sparsity, channel_ratio and limits"),
        (config.max_drop is not None and config.data is None,
         "max_drop is measured on labelled samples: give data, an .npz file with labels 'y', too"),
        (config.data is not None and config.max_drop is None,
         "data are labelled samples for max_drop: give that, too, or unlabeled samples as calibration"),
        (config.channel_ratio is not None and config.has_limits,
         "channel_ratio fixes all widths: give it without limits and device"),
        (config.drop_blocks is not None and config.needs_latency,
         "drop_blocks and goals of latency exclude each other: drop blocks first, then fold the result"),
        (config.max_latency is not None and config.quantizes,
         "max_latency is measured in floats: fold with it first, then quantize with sparsity 0"),
    ]  # fmt: skip
    for holds, message in faults:
        if holds:
            raise ConfigError(message)


def _beside_lossless(config: "FoldConfig") -> list[str]:
    """Return the options that would change outputs."""
    names = ["sparsity", "channel_ratio", "ratios", "cluster", "repair", "device", "max_latency", "min_fidelity"]
    names += ["max_drop", "drop_blocks", *(f"max_{name}" for name in LIMITS)]
    more = [name for name in names if getattr(config, name) not in (None, False, "", {})]
    return [*more, *(["refine"] if config.refines else []), *(["dtype"] if config.quantizes else [])]


def describe_goals(config: "FoldConfig", options: Mapping[str, Option]) -> str:
    """Return the request of a configuration in words."""
    values = {name: (getattr(config, name), option.request) for name, option in options.items()}
    if isinstance(config.drop_blocks, int):
        values["drop_blocks"] = config.drop_blocks, "{} blocks dropped"
    parts = [request.format(value) for value, request in values.values() if request and value not in (None, False)]
    parts += [f"channel ratio {ratio:g} for '{glob}'" for glob, ratio in config.ratios.items()]
    if config.lacks_goal:
        parts.append(f"the most up to sparsity {MOST_REMOVED:g} that keeps {FAITHFUL:.0%} agreement")
    return ", ".join(parts)


def as_plain(config: "FoldConfig", options: Mapping[str, Option]) -> dict[str, Any]:
    """Return the options of a request that decide its result: some always, all others where they are no default."""
    plain: dict[str, Any] = {}
    limits = {f"max_{name}": name for name in LIMITS}
    for name, option in options.items():
        value = getattr(config, name)
        if name in limits:
            recorded = plain.setdefault("limits", {})
            if value is not None:
                recorded[limits[name]] = value
        elif name in _OF_LATENCY:
            if config.needs_latency:
                if isinstance(value, Mapping):  # of a table, the hash of what it holds
                    value = sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
                plain[name] = _plain(value)
        elif option.recorded == ALWAYS or (option.recorded == CHANGED and value != getattr(type(config), name)):
            are_arrays = name in ("calibration", "data") and isinstance(value, Mapping)
            plain[name] = "arrays" if are_arrays else _plain(value)
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(entry) for entry in value]
    return fspath(value) if isinstance(value, PathLike) else value
