"""Comparison of the files that a run reads with those that it writes, before any work."""

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from onnxfold.errors import ConfigError
from onnxfold.files.targets import STDOUT, check_new_folder, target_of


@dataclass(frozen=True)
class Read:
    """A file that is read."""

    path: Path
    role: str  # what it is, for messages
    is_folder: ClassVar[bool] = False  # what is in a folder that is read may be written


@dataclass(frozen=True)
class Output:
    """A path that is written."""

    path: Path
    role: str  # the argument or option that names it
    endings: tuple[str, ...] = ()  # endings that the name may have; () for any
    is_folder: bool = False  # whether it becomes a folder
    may_be_stdout: bool = False  # whether '-' means standard output


def option_outputs(
    path: Path | None, role: str, endings: tuple[str, ...] = (), *, may_be_stdout: bool = False
) -> list[Output]:
    """Return the output of an option that may have been left out."""
    return [] if path is None else [Output(path, role, endings, may_be_stdout=may_be_stdout)]


def check_outputs(outputs: Iterable[Output], reads: Iterable[Read], closed: Iterable[Path] = ()) -> None:
    """Check everything that will be written, before any work."""
    written = [output for output in outputs if _is_written(output)]
    for number, output in enumerate(written):
        for other in written[:number]:
            if _overlap(output, other):
                raise ConfigError(
                    f"{other.role} '{other.path}' and {output.role} '{output.path}' are the same file: give two paths"
                )
        if not output.is_folder and _is_stream(output.path):
            raise ConfigError(
                f"{output.role} '{output.path}' is the file that standard output or error goes to: give another path"
            )
    for folder in closed:
        for output in written:
            if _is_in(output.path, folder):
                raise ConfigError(
                    f"{output.role} '{output.path}' lies in '{folder}', which is read: give a path outside of it"
                )
    present = [output for output in written if output.path.exists()]
    for read in reads if present else ():
        for output in present:
            if _overlap(output, read):
                raise ConfigError(
                    f"{output.role} '{output.path}' is {read.role}: give another path; "
                    "files that are read are never overwritten"
                )


def check_own(paths: Iterable[Path], is_own: Callable[[Path], bool], whose: str) -> None:
    """Raise before a file is replaced that is not one of those that a command writes."""
    for path in paths:
        if path.is_symlink():
            raise ConfigError(f"'{path}' is a link, which {whose} does not follow: give another folder")
        if path.exists() and not (path.is_file() and is_own(path)):
            raise ConfigError(f"'{path}' was not written by {whose}, so it stays: give another folder")


def _is_written(output: Output) -> bool:
    """Check one output alone; return whether it becomes a file or a folder."""
    if output.is_folder:
        check_new_folder(output.path)
        return True
    if (output.path == STDOUT and output.may_be_stdout) or target_of(output.path).is_null:
        return False
    if output.endings and output.path.suffix.lower() not in output.endings:
        formats = f"{' or '.join(output.endings)}, the formats of this output"
        raise ConfigError(f"{output.role} '{output.path}': the name must end in {formats}")
    return True


def _overlap(output: Output, other: Output | Read) -> bool:
    is_inside = output.is_folder and _is_in(other.path, output.path)
    return is_inside or (other.is_folder and _is_in(output.path, other.path)) or _is_same_file(output.path, other.path)


def _is_in(path: Path, folder: Path) -> bool:
    with suppress(OSError, ValueError, RuntimeError):
        return path.resolve().is_relative_to(folder.resolve())
    return False


def _is_same_file(a: Path, b: Path) -> bool:
    """Whether two paths are the same file: by inode, or by resolved path if no file exists yet."""
    with suppress(OSError, ValueError):
        if a.samefile(b):
            return True
    with suppress(OSError, ValueError, RuntimeError):
        return os.path.normcase(a.resolve()) == os.path.normcase(b.resolve())
    return False


def _is_stream(path: Path) -> bool:
    """Whether the output of the run is redirected into this file."""
    for stream in (sys.__stdout__, sys.__stderr__):
        with suppress(OSError, ValueError, AttributeError):
            if os.path.samestat(path.stat(), os.fstat(stream.fileno())):  # type: ignore[union-attr]
                return True
    return False
