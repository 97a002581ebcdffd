"""Files and folders that are not yet complete.

They lie in folders of their own beside what they become, because only a move inside of a file system is atomic, under
short names, because the name of what they become may be as long as a name can be. A run that is killed leaves them
behind; a later run removes those that nobody holds a lock on and that nobody wrote to for a day. Their names hold their
number in the file system, so that nothing of a user's that is called alike is taken for one.
"""

import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, Any

_PREFIX, _SUFFIX = ".onnxfold-", ".part"
_STALE_SECONDS = 24 * 3600.0

_fcntl: Any = None
with suppress(ImportError):  # Windows: then nothing is locked, and no remains are removed
    _fcntl = import_module("fcntl")


def lock(descriptor: int, *, waits: bool = False) -> bool | None:
    """Lock an open file or folder until it is closed; return False if somebody else holds it, None if nobody can."""
    if _fcntl is None:
        return None
    try:
        _fcntl.flock(descriptor, _fcntl.LOCK_EX if waits else _fcntl.LOCK_EX | _fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return None
    return True


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Let one process at a time work on the files of a folder, where the file system has locks."""
    descriptor = -1
    try:
        with suppress(OSError):  # Windows opens no folders
            descriptor = os.open(folder, os.O_RDONLY)
            lock(descriptor, waits=True)
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)


@dataclass(frozen=True)
class PartFile:
    """An incomplete file."""

    path: Path
    file: IO[bytes]  # it, opened for writing and reading

    def move_to(self, target: Path, like: os.stat_result | None) -> None:
        """Complete the file, and give it its name, and the owner and the mode of what was there before."""
        self.file.flush()
        os.fsync(self.file.fileno())  # else a crash may leave the new name with none of the content
        self.file.close()
        if like is not None:
            if hasattr(os, "chown"):
                with suppress(OSError):  # only root may give files away
                    os.chown(self.path, like.st_uid, like.st_gid)
            os.chmod(self.path, stat.S_IMODE(like.st_mode) & 0o777)
        os.replace(self.path, target)


@contextmanager
def part_file(folder: Path, *, private: bool) -> Iterator[PartFile]:
    """Open a new part in a folder; it is gone at the end unless it was moved."""
    mode = 0o600 if private else 0o666  # less the umask, as for any new file
    with part_directory(folder) as drafts:
        path = drafts / "file"
        with open(path, "x+b", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield PartFile(path, file)


@contextmanager
def part_directory(folder: Path) -> Iterator[Path]:
    """Make a folder for parts in a folder; it goes at the end, with what was not moved out of it.

    What killed runs left beside it goes, too, if it is older than a day and not held.
    """
    with suppress(OSError):
        for remains in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
            with suppress(OSError):
                _remove_if_stale(remains)
    path = folder / f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}"
    try:
        path.mkdir(0o700)
        with folder_lock(path):
            marked = path.with_name(_mark(path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX), path.stat()))
            with suppress(PermissionError):  # Windows renames no open folders, and there no remains are removed
                path = path.rename(marked)
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _remove_if_stale(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_DIRECTORY", 0))
    try:
        status = os.fstat(descriptor)
        is_ours = path.name == _mark(path.name.split("-")[1], status)
        if is_ours and time.time() - status.st_mtime > _STALE_SECONDS and lock(descriptor):
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)


def _mark(token: str, status: os.stat_result) -> str:
    """Return a name that holds the number of a part."""
    return f"{_PREFIX}{token}-{status.st_ino:x}{_SUFFIX}"
