"""Hints of what to install name packages: the project's own name leads to nothing but in a checkout."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("onnxfold", "passes", "export", "edge_bench", "integrations")
_NAMES = re.compile(r"pip install ([^\n]*)")
#: What no extra holds.
FURTHER = {"onnxruntime", "tflite-runtime", "tflite-micro"}


def _extras() -> dict[str, list[str]]:
    found: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    return found


def test_hints_name_packages_of_the_extras() -> None:
    known = {re.split(r"[<>=\[;]", entry)[0] for entries in _extras().values() for entry in entries} | FURTHER
    texts = [
        path.read_text() for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")) if not path.is_symlink()
    ]
    hints = [match[1] for text in texts for match in _NAMES.finditer(text)]
    assert len(hints) > 8
    for hint in hints:
        assert "onnxfold" not in hint, hint
        first = re.match(r"'?([a-zA-Z_][\w-]*|\{\w+\})", hint)
        assert first is None or first[1].startswith("{") or first[1] in known, hint


def test_all_is_every_extra_of_a_user() -> None:
    extras = _extras()
    (everything,) = extras["all"]
    assert set(re.findall(r"\w+", everything)) - {"onnxfold"} == {
        "torch", "images", "text", "int8", "firmware", "tflm", "boards", "sweep"
    }  # fmt: skip
    assert "onnxfold[tflite]" in extras["int8"]
