"""A request as plain values, for reports and provenance."""

from collections.abc import Mapping
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from onnxfold.config import latency
from onnxfold.config.goals import LIMITS
from onnxfold.config.option import ALWAYS, CHANGED, options_of

if TYPE_CHECKING:
    from onnxfold.config.fold_config import FoldConfig

#: Options that are recorded together, where latency decides.
_OF_LATENCY = ("max_latency", "latency_table", "threads")


def as_plain(config: "FoldConfig") -> dict[str, Any]:
    """Return the options of a request that decide its result: some always, all others where they are no default."""
    plain: dict[str, Any] = {}
    limits = {f"max_{name}": name for name in LIMITS}
    for name, option in options_of(type(config)).items():
        value = getattr(config, name)
        if name in limits:
            recorded = plain.setdefault("limits", {})
            if value is not None:
                recorded[limits[name]] = value
        elif name in _OF_LATENCY:
            if config.needs_latency:
                plain[name] = latency.plain_table(value) if name == "latency_table" else value
        elif option.recorded == ALWAYS or (option.recorded == CHANGED and value != getattr(type(config), name)):
            plain[name] = _source(value) if name in ("calibration", "data") else _plain(value)
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(entry) for entry in value]
    return fspath(value) if isinstance(value, PathLike) else value


def _source(data: Any) -> str | None:
    """Return where samples come from: a path, or the word 'arrays'."""
    return None if data is None else fspath(data) if isinstance(data, str | PathLike) else "arrays"
