"""Arrays from untrusted ``.npz`` files.

numpy's own reader believes a header and allocates what it says. Here sizes come first: an array's header, the zip
directory's size and the compressed size must agree with each other and, added up, with the memory limit, before
anything is allocated.

References: the ``.npy`` format, numpy/lib/_format_impl.py; a deflate stream of n bytes holds at most 1032 n (RFC 1951).
"""

import os
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from onnxfold.errors import ConfigError
from onnxfold.graph.tensors import Array
from onnxfold.machine import memory

_SUFFIX = ".npy"
_LARGEST_HEADER = 10_000
_MOST_ENTRIES = 10_000
_DEFLATE_RATIO = 1032
#: Errors that its reader and numpy raise on a damaged zip file.
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, ValueError, EOFError, NotImplementedError, RuntimeError, SyntaxError, KeyError,
)  # fmt: skip
_REFUSED = {
    "O": "Python objects: save it as numbers",
    "U": "text: save it as numbers",
    "S": "text: save it as numbers",
    "c": "complex numbers: save the real values that the model reads",
    "M": "dates: save it as numbers",
    "m": "times: save it as numbers",
    "V": "records, or a type that numpy does not have: save it as float32",
}


def load_arrays(path: str | Path, *, max_bytes: int | None = None) -> dict[str, Array]:
    """Read an ``.npz`` of arrays named after a model's inputs, labels as `y`."""
    path = require_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            entries = _entries(archive, path)
            headers = {entry.filename: _header(archive, entry, path) for entry in entries}
            needed = sum(memory.array_bytes(shape, dtype.itemsize) for shape, _, dtype in headers.values())
            with memory.memory_limit(max_bytes):
                memory.require(needed, f"'{path}', uncompressed,", "give fewer samples, or more with --max-memory")
            return {
                entry.filename.removesuffix(_SUFFIX): _values(archive, entry, path, *headers[entry.filename])
                for entry in entries
            }
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"'{path}' cannot be read: {error.strerror or error}") from None
    except _DAMAGE as error:
        raise ConfigError(f"'{path}' is not an .npz file{_actual_kind(path)}: {error}") from None


def require_file(path: object) -> Path:
    """Return the path of a file that can be read from more than once."""
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"arrays are read from the path of an .npz file, not from {type(path).__name__}")
    file = Path(path)
    try:
        if file.is_file():
            return file
        there = file.exists()
    except (OSError, ValueError) as error:  # a name that is too long, or holds a zero byte
        raise ConfigError(f"'{file}' cannot be read: {error}") from None
    if not there:
        raise ConfigError(f"'{file}' does not exist: check the path of the data")
    raise ConfigError(f"'{file}' is a folder, a FIFO or a device: give the path of an .npz file")


def require_samples(path: object, *, scaled: bool) -> Path:
    """Return the path of samples: a folder of images, or a file of arrays that can be read from more than once."""
    with suppress(OSError, ValueError):  # what is wrong with the path is said below
        if isinstance(path, str | os.PathLike) and Path(path).is_dir():
            return Path(path)
    if scaled:
        raise ConfigError(
            f"mean, std and channels are for a folder of images, and '{path}' is none: scale its arrays before"
        )
    return require_file(path)


def _entries(archive: zipfile.ZipFile, path: Path) -> list[zipfile.ZipInfo]:
    entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    if len(entries) > _MOST_ENTRIES:
        raise ConfigError(f"'{path}' holds {len(entries):,} arrays, more than a model can have inputs")
    names = [entry.filename for entry in entries]
    for name in names:
        if not name.endswith(_SUFFIX):
            raise ConfigError(f"'{path}' holds '{name}', which is not an array: write the file with numpy.savez")
        if names.count(name) > 1:
            raise ConfigError(f"'{path}' holds the array '{name.removesuffix(_SUFFIX)}' twice")
    return entries


def _header(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path
) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Return shape, order and type of an array whose sizes agree with each other."""
    name = entry.filename.removesuffix(_SUFFIX)
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ConfigError(f"array '{name}' of '{path}' uses a compression that numpy does not use: use numpy.savez")
    with archive.open(entry) as file:
        shape, is_fortran, dtype = _read_header(file)
        begin = file.tell()
    refused = "O" if dtype.hasobject else dtype.kind
    if refused in _REFUSED:
        raise ConfigError(f"array '{name}' of '{path}' holds {_REFUSED[refused]}")
    if any(d < 0 for d in shape) or len(shape) > 32:
        raise ConfigError(f"array '{name}' of '{path}' has the impossible shape {list(shape)[:8]}")
    said = memory.array_bytes(shape, dtype.itemsize)
    largest = entry.compress_size * (1 if entry.compress_type == zipfile.ZIP_STORED else _DEFLATE_RATIO)
    there = min(entry.file_size, largest) - begin
    if said != entry.file_size - begin or said > there:
        raise ConfigError(
            f"'{path}' is damaged: array '{name}' of the shape {list(shape)} takes {said:,} bytes, and the file holds "
            f"{'at most ' if said == entry.file_size - begin else ''}{max(there, 0):,}"
        )
    return shape, is_fortran, dtype


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    version = np.lib.format.read_magic(file)
    read: Any = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"arrays of format {version} hold records")
    try:
        shape, is_fortran, dtype = read(file, max_header_size=_LARGEST_HEADER)
    except Exception:  # numpy hands on whatever the tokenizer and the parser of Python's literals raise
        raise ValueError("the header of an array cannot be read") from None
    return tuple(int(d) for d in shape), bool(is_fortran), dtype


def _values(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path, shape: tuple[int, ...], is_fortran: bool,
    dtype: np.dtype[np.generic],
) -> Array:  # fmt: skip
    values: Array = np.empty(shape, dtype, order="F" if is_fortran else "C")
    bytes_of: Any = values.reshape(-1, order="A").view(np.uint8) if values.size else b""
    flat = memoryview(bytes_of)
    with archive.open(entry) as file:
        _read_header(file)
        begin = 0
        while begin < len(flat):
            part = file.read(min(len(flat) - begin, 1 << 20))
            if not part:
                raise ConfigError(f"'{path}' is damaged: array '{entry.filename.removesuffix(_SUFFIX)}' is too short")
            flat[begin : begin + len(part)] = part
            begin += len(part)
        file.read(1)  # the end of the stream, where its checksum is looked at
    return values.astype(dtype.newbyteorder("="), copy=False)


def _actual_kind(path: Path) -> str:
    """Return the kind of a file that is not a zip archive, if it is known."""
    try:
        with path.open("rb") as file:
            start = file.read(len(np.lib.format.MAGIC_PREFIX))
    except OSError:
        return ""
    if start == np.lib.format.MAGIC_PREFIX:
        return " but a single .npy array; write it with numpy.savez(path, NAME=array), NAME being the model's input"
    return " of plain arrays" if start.startswith(b"PK") else ""
