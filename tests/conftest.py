"""For all tests: one thread per worker, a folder that the workers share, and the processor time of every test.

`python -m benchmarks.test_times` reads the processor time from the JUnit file.
"""

from __future__ import annotations

import gc
import logging
import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Before anything loads a library that computes. There is a worker per core, and networks here are small: further
# threads would only wait for each other. `OMP_NUM_THREADS=2 make test` runs the same tests with two.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

from onnxfold.torch_graph.availability import reproducible_products
from tests import command_line

# As `load_torch` sets it where it is the first to load torch; in tests it may not be.
for _name, _value in reproducible_products().items():
    os.environ.setdefault(_name, _value)

# The same examples in every run, however slow or busy the machine is.
settings.register_profile(
    "suite", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")

#: Nothing that a test keeps is found by another one, nor by the user whose tests these are.
_CACHES = Path(tempfile.mkdtemp(prefix="onnxfold-tests-caches-"))
os.environ["XDG_CACHE_HOME"] = str(_CACHES)

_STARTED: pytest.StashKey[float] = pytest.StashKey()

# Modules and tests stay to the end: to look through them again and again for garbage was a fifth of the collection.
gc.disable()


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of this run, the same one for all workers."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """What a command of one test sets up (``--verbose``) is not what the next test finds."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    for handler in [h for h in root.handlers if h not in handlers and type(h) is logging.StreamHandler]:
        root.removeHandler(handler)
    logging.captureWarnings(False)


def _cpu_seconds() -> float:
    """Return the processor time of this process and of its finished children, user and system, in seconds."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in used) + command_line.used_seconds


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    os.environ["XDG_CACHE_HOME"] = str(_CACHES / f"{abs(hash(item.nodeid)):x}")
    item.stash[_STARTED] = _cpu_seconds()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Fixtures of a module count for the test that asks first."""
    try:
        return (yield)
    finally:
        item.user_properties.append(("cpu_seconds", f"{_cpu_seconds() - item.stash[_STARTED]:.3f}"))


def pytest_unconfigure() -> None:
    shutil.rmtree(_CACHES, ignore_errors=True)
