"""The command line that repeats a report's fold."""

import shlex
from collections.abc import Mapping
from typing import Any

from onnxfold.config import OPTIONS
from onnxfold.config.option import Kind, Option, flag_of
from onnxfold.printable import printable
from onnxfold.report import FoldReport

#: Between the key and the values of an option that is given once per key.
_SEPARATORS = {Kind.SHARES: "=", Kind.SHAPES: ":"}


def command_line(report: FoldReport, output: str = "OUT.onnx") -> str:
    """Return the ``onnxfold fold`` command of a report, which writes `output`, quoted for a shell.

    Models that were folded in memory appear as ``IN.onnx``, and data as ``FILE.npz``.
    """
    values: dict[str, Any] = dict(report.config)
    values |= {f"max_{name}": limit for name, limit in (values.get("limits") or {}).items()}
    if "latency_table" in values:  # the report holds what was measured
        values["latency_table"] = "REPORT.json"
    words = ["onnxfold", "fold", report.model or "IN.onnx", output]
    for name, option in OPTIONS.items():
        words += _option(name, option, values.get(name))
    words += ["--force"] if report.verdict.is_destroyed else []
    return " ".join(map(_quote, words))


def _option(name: str, option: Option, value: Any) -> list[str]:
    """Return an option of a request as words; none where it is not set."""
    word = flag_of(name, option)
    if value is None or value is False:
        return []
    if value is True:
        return [word]
    if isinstance(value, Mapping):
        shown = [f"{key}{_SEPARATORS[option.kind]}{_text(entry)}" for key, entry in value.items()]
    elif isinstance(value, list | tuple):
        shown = [str(entry) for entry in value] if option.kind is Kind.TEXTS else [_text(value)] if value else []
    else:
        shown = ["FILE.npz" if value == "arrays" and name in ("calibration", "data") else str(value)]
    return [part for text in shown for part in (word, text)]


def _text(value: Any) -> str:
    return ",".join(map(repr, value)) if isinstance(value, list | tuple) else repr(value)


def _quote(word: str) -> str:
    """Return a word as a shell reads it; characters that a page cannot show stand as escapes of ``$'...'``."""
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
