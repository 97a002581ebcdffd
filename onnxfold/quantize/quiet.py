"""Silence of quantisers: what they print, warn of and log goes to the debug log."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

_LOGGER = logging.getLogger(__name__)


class _Caught(logging.Filter):
    """Filter that keeps lines on the root logger from a package, where onnxruntime's quantiser logs."""

    def __init__(self, package: str) -> None:
        super().__init__()
        self._package = package
        self.lines: list[str] = []

    def filter(self, record: logging.LogRecord) -> bool:
        if self._package not in record.pathname.replace("\\", "/"):
            return True
        self.lines.append(record.getMessage())
        return False


@contextlib.contextmanager
def quiet(package: str) -> Iterator[None]:
    """Send what a library prints, warns of, and logs on the root logger to the log's debug level."""
    root, caught, printed = logging.getLogger(), _Caught(package), io.StringIO()
    handler = logging.NullHandler()  # without any handler, a first message would set one up that prints
    root.addFilter(caught)
    root.addHandler(handler)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            warnings.simplefilter("ignore")
            yield
    finally:
        root.removeHandler(handler)
        root.removeFilter(caught)
        for line in (*caught.lines, *printed.getvalue().splitlines()):
            _LOGGER.debug("%s: %s", package, line)
