"""For every test: its processor time goes into the JUnit file, where `python -m benchmarks.test_times` reads it."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from tests import command_line

_STARTED: pytest.StashKey[float] = pytest.StashKey()


def _cpu_seconds() -> float:
    """Return the processor time of this process and of its finished children, user and system, in seconds."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in used) + command_line.used_seconds


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_STARTED] = _cpu_seconds()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Fixtures of a module count for the test that asks first."""
    try:
        return (yield)
    finally:
        item.user_properties.append(("cpu_seconds", f"{_cpu_seconds() - item.stash[_STARTED]:.3f}"))
