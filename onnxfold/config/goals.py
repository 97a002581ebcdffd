"""The goals of a fold: which exclude each other, and the request in words."""

from typing import TYPE_CHECKING

from onnxfold.config.option import options_of
from onnxfold.errors import ConfigError

if TYPE_CHECKING:
    from onnxfold.config.fold_config import FoldConfig

#: Limits by the name of their option, `max_<name>`.
LIMITS = ("params", "macs", "ram", "flash")


def check_goals(config: "FoldConfig") -> None:
    """Refuse goals that exclude each other."""
    if config.lossless:
        _require_alone(config)
    if config.sparsity is not None and config.channel_ratio is not None:
        raise ConfigError("sparsity and channel_ratio exclude each other: give one of them")
    if config.min_fidelity is not None and config.max_drop is not None:
        raise ConfigError("min_fidelity and max_drop exclude each other: give one of them")
    if config.search_option and (config.sparsity is not None or config.channel_ratio is not None or config.has_limits):
        raise ConfigError(
            f"{config.search_option} decides how far to fold: give it without sparsity, channel_ratio and limits"
        )
    if config.max_drop is not None and config.data is None:
        raise ConfigError("max_drop is measured on labelled samples: give data, an .npz file with labels 'y', too")
    if config.data is not None and config.max_drop is None:
        raise ConfigError("data are labelled samples for max_drop: give that, too, or unlabeled samples as calibration")
    if config.channel_ratio is not None and config.has_limits:
        raise ConfigError("channel_ratio fixes all widths: give it without limits and device")
    if config.drop_blocks is not None and config.needs_latency:
        raise ConfigError(
            "drop_blocks and goals of latency exclude each other: drop blocks first, then fold the result"
        )
    if config.max_latency is not None and config.quantizes:
        raise ConfigError("max_latency is measured in floats: fold with it first, then quantize with sparsity 0")


def _require_alone(config: "FoldConfig") -> None:
    """Refuse what would change outputs, beside lossless."""
    names = ["sparsity", "channel_ratio", "ratios", "cluster", "repair", "device", "max_latency", "min_fidelity"]
    names += ["max_drop", "drop_blocks", "tune_norms", *(f"max_{name}" for name in LIMITS)]
    more = [name for name in names if getattr(config, name) not in (None, False, {})]
    more += ["dtype"] if config.quantizes else []
    if more:
        raise ConfigError(f"lossless removes only what changes no output: give it without {more[0]}")


def describe_goals(config: "FoldConfig") -> str:
    """Return the request of a configuration in words."""
    values = {name: (getattr(config, name), option.request) for name, option in options_of(type(config)).items()}
    if isinstance(config.drop_blocks, int):
        values["drop_blocks"] = config.drop_blocks, "{} blocks dropped"
    parts = [request.format(value) for value, request in values.values() if request and value not in (None, False)]
    parts += [f"channel ratio {ratio:g} for '{glob}'" for glob, ratio in config.ratios.items()]
    return ", ".join(parts)
