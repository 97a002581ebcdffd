"""Registry of torch operations, resolved by operator version.

A *builder* reads a node's attributes once and returns the *operation*, a function of the node's input tensors.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onnxfold.graph.view import DEFAULT_DOMAINS
from onnxfold.torch_graph.node import TorchNode

#: A function of the node's inputs, None for those left out, that returns its output or a tuple of all of them.
Operation = Callable[..., Any]
Builder = Callable[[TorchNode], Operation]


@dataclass(frozen=True)
class _Entry:
    since: int
    build: Builder


_ENTRIES: dict[tuple[str, str], list[_Entry]] = {}


def operator(*op_types: str, since: int = 1, domain: str = "") -> Callable[[Builder], Builder]:
    """Register a builder for operators.

    Parameters
    ----------
    *op_types : str
        ONNX operator names.
    since : int
        First version of the operator that the builder understands; it holds until a newer one is registered, as in
        :mod:`onnx.defs`.
    domain : str
        Operator domain.

    Raises
    ------
    ValueError
        If the operator version already has a builder.
    """

    def register(build: Builder) -> Builder:
        for op_type in op_types:
            entries = _ENTRIES.setdefault((_canonical(domain), op_type), [])
            if any(entry.since == since for entry in entries):
                raise ValueError(f"operator {domain}::{op_type} version {since} already has a builder")
            entries.append(_Entry(since, build))
            entries.sort(key=lambda entry: entry.since)
        return build

    return register


def find_builder(domain: str, op_type: str, version: int) -> Builder | None:
    """Return the newest builder that is not newer than the model's operator set."""
    entries = _ENTRIES.get((_canonical(domain), op_type), [])
    return next((entry.build for entry in reversed(entries) if entry.since <= version), None)


def registered() -> list[tuple[str, str]]:
    """Return domain and name of every operator that has a builder."""
    return sorted(_ENTRIES)


def _canonical(domain: str) -> str:
    return "" if domain in DEFAULT_DOMAINS else domain
