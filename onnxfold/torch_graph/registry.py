"""Registry of torch operations, resolved by operator version.

A *builder* reads a node's attributes once and returns the *operation*, a function of the node's input tensors.
"""

from collections.abc import Callable
from typing import Any

from onnxfold.graph.registry import OperatorRegistry
from onnxfold.torch_graph.node import TorchNode

#: A function of the node's inputs, None for those left out, that returns its output or a tuple of all of them.
Operation = Callable[..., Any]
Builder = Callable[[TorchNode], Operation]

_BUILDERS = OperatorRegistry[Builder]("a builder")
find_builder = _BUILDERS.find


def operator(*op_types: str, since: int = 1, domain: str = "") -> Callable[[Builder], Builder]:
    """Register a builder for operators."""

    def register(build: Builder) -> Builder:
        for op_type in op_types:
            _BUILDERS.add(op_type, build, since=since, domain=domain)
        return build

    return register


def all_operators() -> list[tuple[str, str]]:
    """Return domain and name of every operator that has a builder."""
    return list(dict.fromkeys((domain, op_type) for domain, op_type, _ in _BUILDERS))
