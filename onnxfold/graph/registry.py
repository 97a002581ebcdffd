"""Registry of implementations by operator domain, operator and version, and the node as they read it."""

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from onnx import NodeProto

from onnxfold.graph.nodes import attr_float, attr_int, attr_ints, attribute, canonical_domain, node_key
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView

T = TypeVar("T")


class OperatorRegistry(Generic[T]):
    """Implementations of operators, resolved by version as in :mod:`onnx.defs`.

    An implementation holds from the version that it is registered for until a newer one is registered.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._entries: dict[tuple[str, str], dict[int, T]] = {}

    def add(self, op_type: str, implementation: T, *, since: int = 1, domain: str = "") -> None:
        """Register an implementation."""
        versions = self._entries.setdefault((canonical_domain(domain), op_type), {})
        if since in versions:
            raise ValueError(f"operator {domain}::{op_type} version {since} already has {self._what}")
        versions[since] = implementation

    def find(self, domain: str, op_type: str, version: int) -> T | None:
        """Return the newest implementation that is not newer than the model's operator set; None if none is."""
        versions = self._entries.get((canonical_domain(domain), op_type), {})
        return next((versions[since] for since in sorted(versions, reverse=True) if since <= version), None)

    def __iter__(self) -> Iterator[tuple[str, str, T]]:
        """Yield domain, operator and implementation, sorted by these and by version."""
        for (domain, op_type), versions in sorted(self._entries.items(), key=lambda entry: entry[0]):
            for since in sorted(versions):
                yield domain, op_type, versions[since]


class NodeReader:
    """A node and what its graph knows of it; channel rules, torch operators and exporters add their own words."""

    def __init__(self, view: GraphView, node: NodeProto) -> None:
        self.view = view
        self.node = node
        self.key = node_key(node)  # the output that names the node
        self.name = node.name or self.key  # how messages call it
        self.op_type = node.op_type
        self.inputs, self.outputs = list(node.input), list(node.output)  # names, '' where one is left out
        self.version = view.opset(node.domain)  # of the operator's domain, as the model imports it

    def has_attribute(self, name: str) -> bool:
        """Whether an attribute is given."""
        return any(a.name == name for a in self.node.attribute)

    def value(self, name: str, default: object = None) -> object:
        """Return an attribute as ONNX's Python helpers give it."""
        return attribute(self.node, name, default)

    def integer(self, name: str, default: int) -> int:
        """Return an integer attribute."""
        return attr_int(self.node, name, default)

    def integers(self, name: str, default: Iterable[int] = ()) -> list[int]:
        """Return an integer list attribute."""
        return attr_ints(self.node, name, default)

    def number(self, name: str, default: float) -> float:
        """Return a float attribute."""
        return attr_float(self.node, name, default)

    def text(self, name: str, default: str) -> str:
        """Return a string attribute."""
        value = attribute(self.node, name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def input(self, index: int) -> str:
        """Return the name of an input, '' if it is not given."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def output(self, index: int = 0) -> str:
        """Return the name of an output, '' if it is left out."""
        return self.outputs[index] if index < len(self.outputs) else ""

    def has_input(self, index: int) -> bool:
        """Whether an input is given."""
        return bool(self.input(index))

    def has_output(self, index: int) -> bool:
        """Whether an output is read."""
        return bool(self.output(index))

    def is_weight(self, tensor: str) -> bool:
        """Whether `tensor` is an initializer."""
        return self.view.is_weight(tensor)

    def is_constant(self, index: int) -> bool:
        """Whether an input is given as a weight."""
        return self.is_weight(self.input(index))

    def constant(self, index: int) -> Array | None:
        """Return the values of a constant input, None if it is not given or computed at run time."""
        return self.view.weight(self.input(index)) if self.is_constant(index) else None
