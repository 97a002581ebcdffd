"""Contents of a folder: all of them are copied, and nothing outside of the folder is read."""

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfileobj
from typing import IO

from onnxfold.errors import ConfigError, ModelLoadError
from onnxfold.files.targets import reason


@dataclass(frozen=True)
class Entry:
    """One file, folder or link."""

    place: Path  # where it is, relative to the folder
    target: Path | None = None  # for a link, the place that it leads to, relative to the folder
    is_folder: bool = False  # whether it is a folder itself

    def copy(self, source: Path, draft: Path, content: bytes | None = None) -> None:
        """Make the same entry in another folder; a link leads to the same place there."""
        made = draft / self.place
        if self.is_folder:
            made.mkdir()
        elif self.target is not None:
            made.symlink_to(os.path.relpath(draft / self.target, made.parent))
        elif content is not None:
            made.write_bytes(content)
        else:
            _copy_file(source / self.place, made)


def open_regular(path: Path, *, follows: bool = True) -> IO[bytes]:
    """Open a file for reading, which never waits for what a FIFO or a device may say."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags if follows else flags | getattr(os, "O_NOFOLLOW", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file")
    return os.fdopen(descriptor, "rb")


def entries_of(folder: Path) -> tuple[Entry, ...]:
    """Return everything in a folder, folders before what is in them, in the order of names."""
    try:
        return tuple(_entries(Path(os.path.realpath(folder)), Path()))
    except OSError as error:
        raise ModelLoadError(f"'{error.filename or folder}' cannot be read: {reason(error)}") from None


def _entries(root: Path, place: Path) -> Iterator[Entry]:
    with os.scandir(root / place) as listing:
        names = sorted(listing, key=lambda entry: entry.name)
    for entry in names:
        here = place / entry.name
        if entry.is_symlink():
            leads = Path(os.path.realpath(entry.path))
            if not leads.is_relative_to(root):
                raise ConfigError(
                    f"'{root / here}' is a link out of its folder, to '{leads}': put a copy in the link's place"
                )
            yield Entry(here, target=leads.relative_to(root))
        elif entry.is_dir(follow_symlinks=False):
            yield Entry(here, is_folder=True)
            yield from _entries(root, here)
        elif entry.is_file(follow_symlinks=False):
            yield Entry(here)
        else:
            raise ConfigError(f"'{root / here}' is a FIFO, a device or a socket: take it out of the folder")


def _copy_file(source: Path, made: Path) -> None:
    """Copy a file with its mode; what took its place since it was found is not followed, and not waited for."""
    try:
        opened = open_regular(source, follows=False)
    except OSError as error:
        raise ModelLoadError(f"'{source}' cannot be read: {reason(error)}") from None
    with opened as file:
        mode = os.fstat(file.fileno()).st_mode
        with made.open("xb") as copy:
            copyfileobj(file, copy, 1 << 20)
        made.chmod(stat.S_IMODE(mode) & 0o777)
