"""Registry of implementations by operator domain, operator and version."""

from collections.abc import Iterator
from typing import Generic, TypeVar

from onnxfold.graph.nodes import DEFAULT_DOMAINS

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
        versions = self._entries.setdefault((_canonical(domain), op_type), {})
        if since in versions:
            raise ValueError(f"operator {domain}::{op_type} version {since} already has {self._what}")
        versions[since] = implementation

    def find(self, domain: str, op_type: str, version: int) -> T | None:
        """Return the newest implementation that is not newer than the model's operator set; None if none is."""
        versions = self._entries.get((_canonical(domain), op_type), {})
        return next((versions[since] for since in sorted(versions, reverse=True) if since <= version), None)

    def __iter__(self) -> Iterator[tuple[str, str, T]]:
        """Yield domain, operator and implementation, sorted by these and by version."""
        for (domain, op_type), versions in sorted(self._entries.items(), key=lambda entry: entry[0]):
            for since in sorted(versions):
                yield domain, op_type, versions[since]


def _canonical(domain: str) -> str:
    return "" if domain in DEFAULT_DOMAINS else domain
