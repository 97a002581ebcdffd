"""Registry of TFLite writers by ONNX operator, with the layouts of their tensors."""

from collections.abc import Callable
from dataclasses import dataclass

from onnxfold.export.tflite.context import Op
from onnxfold.export.tflite.layout_rules import LayoutRule
from onnxfold.graph.view import DEFAULT_DOMAINS

Write = Callable[[Op], None]


@dataclass(frozen=True)
class Converter:
    """A function and the layouts it works in."""

    op_type: str
    since: int
    write: Write
    layouts: LayoutRule


_CONVERTERS: dict[tuple[str, str], list[Converter]] = {}


def converter(*op_types: str, layouts: LayoutRule, since: int = 1, domain: str = "") -> Callable[[Write], Write]:
    """Register the converter of operators.

    Parameters
    ----------
    *op_types : str
        ONNX operator names.
    layouts : LayoutRule
        What the function reads and writes.
    since : int
        First version of the operator that it understands.
    domain : str
        Operator domain.

    Raises
    ------
    ValueError
        If the operator version already has one.
    """

    def register(function: Write) -> Write:
        for op_type in op_types:
            known = _CONVERTERS.setdefault((_canonical(domain), op_type), [])
            if any(c.since == since for c in known):
                raise ValueError(f"operator {domain}::{op_type} version {since} already has a converter")
            known.append(Converter(op_type, since, function, layouts))
            known.sort(key=lambda c: c.since)
        return function

    return register


def find_converter(domain: str, op_type: str, version: int) -> Converter | None:
    """Return the newest converter that is not newer than the model's operator set."""
    known = _CONVERTERS.get((_canonical(domain), op_type), [])
    return next((c for c in reversed(known) if c.since <= version), None)


def registered() -> list[tuple[str, Converter]]:
    """Return every converter with its domain, for documentation and tests."""
    return [(domain, c) for (domain, _), known in sorted(_CONVERTERS.items()) for c in known]


def _canonical(domain: str) -> str:
    return "" if domain in DEFAULT_DOMAINS else domain
