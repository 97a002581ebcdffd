"""Resolution of output paths: links are followed, and special files are refused."""

import errno
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from onnxfold.errors import ConfigError, ModelSaveError

#: In place of a report's path: JSON on standard output.
STDOUT = Path("-")

#: Kinds of files, by the first letter that `ls -l` shows.
_KINDS = {"p": "a FIFO", "s": "a socket", "c": "a device", "b": "a device"}


@dataclass(frozen=True)
class Target:
    """A path that may become a file."""

    path: Path
    real: Path  # the file itself, links followed
    status: os.stat_result | None  # the file that is there now
    is_null: bool = False  # whether it is the null device: then nothing is written


def target_of(path: Path) -> Target:
    """Return the target that a path leads to."""
    if path == STDOUT:
        raise ConfigError("standard output ('-') accepts only a JSON report: give the path of a file")
    status = _stat(path)
    if status is not None:
        if stat.S_ISDIR(status.st_mode):
            raise ModelSaveError(f"'{path}' is a folder: give the path of the output file")
        if _is_null(status):
            return Target(path, path, status, is_null=True)
        if not stat.S_ISREG(status.st_mode):
            kind = _KINDS.get(stat.filemode(status.st_mode)[0], "no file")
            raise ModelSaveError(f"'{path}' is {kind}, which is never replaced: give the path of a file")
    real = path.resolve()
    if not real.parent.is_dir():
        raise ModelSaveError(
            f"the folder '{real.parent if path.is_symlink() else path.parent}' does not exist: create it first"
        )
    if not os.access(real.parent, os.W_OK) or (status is not None and not os.access(real, os.W_OK)):
        raise ModelSaveError(f"'{path}' cannot be written: permission denied")
    return Target(path, real, status)


def check_new_folder(path: Path) -> None:
    """Raise if `path` cannot become a folder."""
    status = None if path == STDOUT else _stat(path)
    if path == STDOUT or (status is not None and not stat.S_ISDIR(status.st_mode)) or (status and any(path.iterdir())):
        raise ConfigError(f"'{path}' is not an empty folder: give the path of a new one")
    parent = path.resolve().parent
    if not parent.is_dir():
        raise ModelSaveError(f"the folder '{path.parent}' does not exist: create it first")
    if not os.access(parent, os.W_OK):
        raise ModelSaveError(f"'{path}' cannot be written: permission denied")


def reason(error: OSError | ValueError) -> str:
    """Return why a file operation failed, in words; a ValueError is a name that no file may have."""
    if not isinstance(error, OSError):
        return str(error)
    if error.errno == errno.ENOSPC:
        return "no space left on the disk"
    text = error.strerror or str(error) or type(error).__name__
    return text[:1].lower() + text[1:]


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ModelSaveError(f"'{path}' cannot be written: {reason(error)}") from None


def _is_null(status: os.stat_result) -> bool:
    """Whether a file is the null device, under any name."""
    with suppress(OSError):
        return stat.S_ISCHR(status.st_mode) and status.st_rdev == os.stat(os.devnull).st_rdev
    return False
