"""A bounded folder of files that can be computed again, such as inverted images and measured times.

A file is named after its kind and the hash of everything that decides its content, so it is never out of date; what is
wanted least recently goes first. Nothing depends on the cache: what it cannot read is computed, what it cannot write is
not kept, and a note says so.
"""

import hashlib
import os
import platform
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

from onnxfold._version import __version__
from onnxfold.config import NO_CACHE
from onnxfold.config.values import DEFAULT_CACHE
from onnxfold.errors import ConfigError
from onnxfold.files.contents import open_regular
from onnxfold.files.parts import part_file
from onnxfold.files.targets import reason
from onnxfold.machine.instructions import processor_lines

T = TypeVar("T")
#: Bytes of all files together.
LIMIT = 256 << 20

_HEAD = b"onnxfold cache 1\n"
_DIGEST = 32
_NAME = re.compile(r"[a-z]+-[0-9a-f]{64}\.cache")
#: Distributions whose code decides what is kept.
DISTRIBUTIONS = ("numpy", "onnx", "onnxruntime", "torch")


class Cache:
    """The files, by kind and key."""

    def __init__(self, place: str | os.PathLike[str] | None = None, limit: int = LIMIT) -> None:
        self.notes: list[str] = []  # on files that could not be read or kept
        self._limit = limit
        self._folder: Path | None = None
        if place == DEFAULT_CACHE:
            self._folder = _own_folder()
            if self._folder is None:
                self._note("no home folder was found, so nothing is kept for the next run: give --cache DIR")
        elif place is not None and place != NO_CACHE:
            self._folder = Path(place)
            if os.path.exists(place) and not os.path.isdir(place):
                raise ConfigError(f"--cache '{place}' is a file: give a folder, or 'none'")

    @property
    def is_on(self) -> bool:
        """Whether anything can be found."""
        return self._folder is not None

    def read(self, kind: str, key: str, reader: Callable[[bytes], T]) -> T | None:
        """Return the content of a file as a value; None where there is none, or another one than was put there."""
        if self._folder is None:
            return None
        path = self._folder / _name(kind, key)
        try:
            value = reader(_content(path, self._limit))
        except FileNotFoundError:
            return None
        except OSError as error:
            self._note(f"the cached file '{path}' cannot be read, so it was computed again: {reason(error)}")
            return None
        except (ValueError, RecursionError) as error:
            why = str(error) if isinstance(error, ValueError) else "it is nested too deeply"
            self._note(f"the cached file '{path}' is damaged or not onnxfold's, so it was computed again: {why}")
            return None
        with suppress(OSError):  # a read-only folder forgets what was wanted last
            os.utime(path)
        return value

    def put(self, kind: str, key: str, content: bytes) -> None:
        """Keep a content, and drop what was wanted least recently until all files fit into the limit."""
        if self._folder is None or len(_HEAD) + _DIGEST + len(content) > self._limit:
            return
        name = _name(kind, key)
        try:
            self._folder.mkdir(0o700, parents=True, exist_ok=True)
            with part_file(self._folder, private=True) as part:
                part.file.write(_frame(name, content))
                part.move_to(self._folder / name, None)
            _trim(self._folder, self._limit)
        except (OSError, ValueError) as error:
            self._note(
                f"the cache folder '{self._folder}' cannot be written, so nothing is kept there: {reason(error)}"
            )

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def key_of(parts: Mapping[str, bytes | str]) -> str:
    """Return the key of what these parts, this version of the code, and this machine decide."""
    hashed = hashlib.sha256()
    for name, part in {**parts, "code": code_version(), "machine": machine_kind()}.items():
        data = part.encode() if isinstance(part, str) else part
        hashed.update(f"{name}:{len(data)}:".encode())
        hashed.update(data)
    return hashed.hexdigest()


@cache
def code_version() -> str:
    """Return a fingerprint of this code and the libraries that it computes with, edits of a checkout included."""
    from importlib import metadata  # not for every command

    hashed = hashlib.sha256(__version__.encode())
    package = Path(__file__).parents[1]
    files: list[Path] = []
    for folder, _, names in os.walk(package, followlinks=True):
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    for path in sorted(files):
        hashed.update(f"{path.relative_to(package)}\n".encode())
        with suppress(OSError):
            hashed.update(path.read_bytes())
    for name in DISTRIBUTIONS:
        with suppress(metadata.PackageNotFoundError):
            hashed.update(f"{name} {metadata.version(name)}\n".encode())
    return hashed.hexdigest()


@cache
def machine_kind() -> str:
    """Return a description of this kind of processor: another kind may round differently, and takes other times."""
    lines = processor_lines("model name|CPU part|Hardware|flags|Features")
    return "\n".join([sys.platform, platform.machine(), platform.processor(), *dict.fromkeys(lines)])


def _own_folder() -> Path | None:
    """Return the folder that the system means for this user's caches; None without a home."""
    folder = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME", "")
    if folder and os.path.isabs(folder):
        return Path(folder) / "onnxfold"
    try:
        home = Path.home()
    except RuntimeError:
        return None
    caches = Path("Library", "Caches") if sys.platform == "darwin" else Path(".cache")
    return home / caches / "onnxfold" if home.is_dir() else None


def _name(kind: str, key: str) -> str:
    name = f"{kind}-{key}.cache"
    assert _NAME.fullmatch(name), name
    return name


def _frame(name: str, content: bytes) -> bytes:
    """Return a file: its content, behind what says that it is one, under this name, and whole."""
    return _HEAD + hashlib.sha256(name.encode() + content).digest() + content


def _content(path: Path, limit: int) -> bytes:
    with open_regular(path, follows=False) as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise ValueError("it is larger than the whole cache may be")
        framed = file.read()
    content = framed[len(_HEAD) + _DIGEST :]
    if framed != _frame(path.name, content):
        raise ValueError("its content is not what was put there")
    return content


def _trim(folder: Path, limit: int) -> None:
    """Remove files of the cache, those wanted least recently first, until the others fit."""
    files = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):  # somebody else removed it
                if _NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    files.append((status.st_mtime_ns, entry.name, status.st_size))
    total = sum(size for _, _, size in files)
    for _, name, size in sorted(files):
        if total <= limit:
            return
        with suppress(OSError):
            (folder / name).unlink()
            total -= size
