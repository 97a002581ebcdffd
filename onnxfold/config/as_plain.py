"""A request as plain values, for reports and provenance."""

from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from onnxfold.config import latency, pixels
from onnxfold.config.goals import LIMITS

if TYPE_CHECKING:
    from onnxfold.config.fold_config import FoldConfig

#: Type of what is written, where it is the model's own.
_KEEP = "keep"


def as_plain(config: "FoldConfig") -> dict[str, Any]:
    """Return the options of a request, and nothing that is not decided by them."""
    return {
        "sparsity": config.sparsity,
        "channel_ratio": config.channel_ratio,
        "ratios": dict(config.ratios),
        "method": config.method,
        "cluster": config.cluster,
        "repair": config.repair,
        "allocation": config.allocation,
        "limits": {n: getattr(config, f"max_{n}") for n in LIMITS if getattr(config, f"max_{n}") is not None},
        **_latency(config),
        "device": config.device,
        "min_fidelity": config.min_fidelity,
        "inputs": config.inputs,
        "samples": config.samples,
        **({} if config.input_seconds is None else {"input_seconds": config.input_seconds}),
        **({"input_steps": list(config.input_steps)} if config.input_steps else {}),
        **_data(config),
        "round_to": config.round_to,
        "objective": config.objective,
        "keep": list(config.keep),
        "input_shapes": {k: list(v) for k, v in config.input_shapes.items()},
        **{name: True for name in ("allow_cache_change", "per_layer_cache", "inside_heads") if getattr(config, name)},
        **({} if config.drop_blocks is None else {"drop_blocks": config.drop_blocks}),
        **({"tune_norms": True} if config.tune_norms else {}),
        "seed": config.seed,
        **({} if config.dtype == _KEEP else {"dtype": config.dtype}),
        # It changes the result only if it is too low for the request, so the default is not recorded.
        **({} if config.max_memory is None else {"max_memory": config.max_memory}),
    }


def _latency(config: "FoldConfig") -> dict[str, Any]:
    limit = latency.checked_limit(config.max_latency)
    return latency.to_dict(limit, config.threads, config.latency_table) if config.needs_latency else {}


def _data(config: "FoldConfig") -> dict[str, Any]:
    searched = {} if config.max_drop is None else {"data": _source(config.data), "max_drop": config.max_drop}
    scale = config.pixel_scale
    scaled = {"mean": list(scale.mean), "std": list(scale.std)} if scale is not None and scale.mean else {}
    order = {} if config.channels == pixels.RGB else {"channels": config.channels}
    words = {} if config.tokenizer is None else {"tokenizer": fspath(config.tokenizer)}
    return {"calibration": _source(config.calibration), **words, **scaled, **order, **searched}


def _source(data: Any) -> str | None:
    """Return where samples come from: a path, or the word 'arrays'."""
    return None if data is None else fspath(data) if isinstance(data, str | PathLike) else "arrays"
