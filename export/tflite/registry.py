"""Registry of TFLite writers by ONNX operator, with the layouts of their tensors."""

from collections.abc import Callable
from dataclasses import dataclass

from onnxfold.export.tflite.context import Op
from onnxfold.export.tflite.layout_rules import LayoutRule
from onnxfold.graph.registry import OperatorRegistry

Write = Callable[[Op], None]


@dataclass(frozen=True)
class Converter:
    """A function and the layouts it reads and writes its tensors in."""

    op_type: str
    since: int
    write: Write
    layouts: LayoutRule


_CONVERTERS = OperatorRegistry[Converter]("a converter")
find_converter = _CONVERTERS.find


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
            _CONVERTERS.add(op_type, Converter(op_type, since, function, layouts), since=since, domain=domain)
        return function

    return register


def registered() -> list[tuple[str, Converter]]:
    """Return every converter with its domain, for documentation and tests."""
    return [(domain, converter) for domain, _, converter in _CONVERTERS]
