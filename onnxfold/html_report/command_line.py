"""The command line that repeats a report's fold."""

import shlex
from collections.abc import Mapping
from typing import Any

from onnxfold.printable import printable
from onnxfold.report import FoldReport

#: Options that are written out only where they were given.
_OPTIONAL = (
    "sparsity", "channel_ratio", "device", "min_fidelity", "max_drop", "cluster", "repair", "samples", "input_seconds",
    "dtype", "max_memory",
)  # fmt: skip
_ALWAYS = ("method", "allocation", "round_to", "objective", "seed")


def command_line(report: FoldReport, output: str = "OUT.onnx") -> str:
    """Return the ``onnxfold fold`` command of a report, which writes `output`, quoted for a shell.

    Models that were folded in memory appear as ``IN.onnx``, and data as ``FILE.npz``.
    """
    config: Mapping[str, Any] = report.config
    words = ["onnxfold", "fold", report.model or "IN.onnx", output]
    words += _options(config, [name for name in _OPTIONAL if config.get(name) is not None])
    for name, limit in (config.get("limits") or {}).items():
        words += [f"--max-{name}", str(limit)]
    words += _options(config, [name for name in _ALWAYS if name in config])
    if "latency_table" in config:  # what else depends on latency
        words += _options(config, [name for name in ("max_latency", "threads") if config.get(name) is not None])
        words += ["--latency-table", "REPORT.json"]
    given = config.get("calibration")
    if given is not None:
        words += ["--calibration", "FILE.npz" if given == "arrays" else str(given)]
        for name in ("mean", "std"):
            words += [f"--{name}", ",".join(repr(value) for value in config[name])] if config.get(name) else []
        words += _options(config, ["channels"] if config.get("channels") else [])
    elif "inputs" in config:
        words += ["--inputs", str(config["inputs"])]
    if config.get("data") is not None:
        words += ["--data", "FILE.npz" if config["data"] == "arrays" else str(config["data"])]
    if config.get("input_steps"):
        words += ["--input-steps", ",".join(map(str, config["input_steps"]))]
    for glob, ratio in (config.get("ratios") or {}).items():
        words += ["--ratio", f"{glob}={ratio!r}"]
    for glob in config.get("keep") or ():
        words += ["--keep", str(glob)]
    for name, shape in (config.get("input_shapes") or {}).items():
        words += ["--input-shapes", f"{name}:{','.join(str(size) for size in shape)}"]
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    """Return a word as a shell reads it; what a page cannot show stands as the escapes of ``$'...'``."""
    if word == printable(word):
        return shlex.quote(word)
    return "$'" + "".join(map(_escape, word)) + "'"


def _escape(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character == printable(character):
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a file name that is no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _options(config: Mapping[str, Any], names: list[str]) -> list[str]:
    return [word for name in names for word in (f"--{name.replace('_', '-')}", str(config[name]))]
