"""Inputs and labels from a user: arrays from untrusted ``.npz`` files, and their check before any run.

numpy's own reader believes a header and allocates what it says. Here sizes come first: an array's header, the zip
directory's size and the compressed size must agree with each other and, added up, with the memory limit, before
anything is allocated.

References: the ``.npy`` format, numpy/lib/_format_impl.py; a deflate stream of n bytes holds at most 1032 n (RFC 1951).
"""

import os
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from onnx import helper

from onnxfold.errors import ConfigError
from onnxfold.graph.run.session import InputInfo, in_batches, sample_count
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.machine import memory
from onnxfold.statistics.activations import Batches

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


def load_arrays(path: str | Path) -> dict[str, Array]:
    """Read an ``.npz`` of arrays named after a model's inputs, labels as `y`."""
    path = require_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            entries = _entries(archive, path)
            needed = sum(_size(archive, entry, path) for entry in entries)
            memory.require(needed, f"'{path}', uncompressed,", "give fewer samples, or more with --max-memory")
            return {entry.filename.removesuffix(_SUFFIX): _values(archive, entry) for entry in entries}
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
    if isinstance(path, str | os.PathLike) and os.path.isdir(path):
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


def _size(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> int:
    """Return how many bytes an array takes whose sizes agree with each other."""
    name = entry.filename.removesuffix(_SUFFIX)
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ConfigError(f"array '{name}' of '{path}' uses a compression that numpy does not use: use numpy.savez")
    with archive.open(entry) as file:
        shape, dtype = _read_header(file)
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
    return said


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    version = np.lib.format.read_magic(file)
    read: Any = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"arrays of format {version} hold records")
    try:
        shape, _, dtype = read(file, max_header_size=_LARGEST_HEADER)
    except Exception:  # numpy hands on whatever the tokenizer and the parser of Python's literals raise
        raise ValueError("the header of an array cannot be read") from None
    return tuple(int(d) for d in shape), dtype


def _values(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Array:
    """Return an array whose header was read before."""
    with archive.open(entry) as file:
        values: Array = np.lib.format.read_array(file, max_header_size=_LARGEST_HEADER)
        file.read(1)  # the end of the stream, where its checksum is looked at
    return values.astype(values.dtype.newbyteorder("="), copy=False)


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


#: Names that an array of labels may have, and the array of a model's only input beside its own name.
LABELS, SAMPLES = ("y", "labels"), ("x", "images")


@dataclass(frozen=True, eq=False)
class UserSamples:
    """Samples in the types of a model's inputs."""

    arrays: dict[str, Array]  # arrays named after the inputs, samples along axis 0
    labels: Array | None = None  # the labels beside them, as they were given
    reason: str = "the given samples"  # origin of the samples, for reports
    notes: tuple[str, ...] = ()


def input_infos(view: GraphView) -> list[InputInfo]:
    """Return name, type and shape of every input of a network."""
    types = {name: helper.tensor_dtype_to_np_dtype(view.elem_type(name) or 1) for name in view.input_names}
    return [InputInfo(name, np.dtype(dtype), view.shape(name) or ()) for name, dtype in types.items()]


def without_labels(inputs: list[InputInfo], user_arrays: Mapping[str, Array]) -> tuple[dict[str, Array], Array | None]:
    """Return a user's arrays by input, `x` or `images` for an only one, and the labels, `y` or `labels`, if any."""
    arrays, names = dict(user_arrays), {info.name for info in inputs}
    labels = [arrays.pop(name) for name in LABELS if name in arrays and name not in names]
    if len(labels) > 1:
        raise ConfigError(f"the data has the arrays {' and '.join(map(repr, LABELS))}: keep the one with the labels")
    sample_names = [name for name in SAMPLES if name in arrays]
    if len(names) == 1 and not names & arrays.keys() and sample_names:
        if len(sample_names) > 1:
            raise ConfigError(
                f"the data has the arrays {' and '.join(map(repr, sample_names))}: keep the one with the inputs"
            )
        arrays[inputs[0].name] = arrays.pop(sample_names[0])
    return arrays, labels[0] if labels else None


def checked_inputs(inputs: list[InputInfo], user_arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return a user's arrays in the model's types."""
    if not isinstance(user_arrays, Mapping):
        raise ConfigError(f"inputs are a mapping of names to arrays, not {type(user_arrays).__name__}")
    feeds = {}
    for info in inputs:
        if info.name not in user_arrays:
            raise ConfigError(f"the data has no array '{info.name}': name the arrays after the model's inputs")
        values = _array(f"array '{info.name}'", user_arrays[info.name])
        fits = values.ndim == len(info.shape) and all(
            d is None or d == v for d, v in zip(info.shape[1:], values.shape[1:], strict=True)
        )
        if not fits:
            expected = ", ".join("any" if d is None else str(d) for d in info.shape)
            raise ConfigError(
                f"array '{info.name}' has the shape {list(values.shape)}, but the model takes [{expected}]"
            )
        if not values.size:
            raise ConfigError(f"array '{info.name}' of the shape {list(values.shape)} holds no samples")
        if info.shape and info.shape[0] is not None and len(values) % info.shape[0]:
            raise ConfigError(
                f"array '{info.name}' has {len(values)} samples, the model's fixed batch is {info.shape[0]}"
            )
        feeds[info.name] = _as_input_type(info, values)
    if len({len(v) for v in feeds.values() if v.ndim}) > 1:
        raise ConfigError("the arrays of the data have different numbers of samples")
    return feeds


def checked_labels(labels: object, samples: int) -> Array:
    """Return class numbers as integers of the shape (samples,)."""
    if labels is None:
        raise ConfigError(f"the data has no labels: name their array {' or '.join(map(repr, LABELS))}")
    values = _array("the labels 'y'", labels)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim == 2:
        raise ConfigError(
            f"the labels 'y' have the shape {list(values.shape)}: give one class number per sample, "
            "of one-hot labels y.argmax(axis=1)"
        )
    if values.shape != (samples,):
        raise ConfigError(f"the labels 'y' have the shape {list(values.shape)}, and there are {samples} samples")
    if values.dtype.kind == "f" and not np.array_equal(values, np.round(values)):  # NaN is unlike itself
        raise ConfigError("the labels 'y' are not whole numbers: give one class number per sample")
    if values.dtype.kind == "b" or values.min(initial=0) < 0:
        raise ConfigError("the labels 'y' are not class numbers, which start at 0")
    return values.astype(np.int64)


def _array(what: str, values: object) -> Array:
    try:
        array: Array = np.asarray(values)
    except (ValueError, TypeError) as error:  # lists of lists of different lengths, for one
        raise ConfigError(f"{what} cannot be read as an array: {error}") from None
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise ConfigError(f"{what} is of the type {array.dtype}: give real numbers")
    return array


def _as_input_type(info: InputInfo, values: Array) -> Array:
    """Return values in the type of an input, which must be able to hold them."""
    is_float = info.dtype.kind not in "biu"
    if values.dtype.kind not in "biu" and np.isnan(values).any():
        raise ConfigError(f"array '{info.name}' holds NaN: remove these samples")
    if values.dtype == info.dtype:
        return values
    with np.errstate(all="ignore"):
        cast = values.astype(info.dtype)
    same = np.isfinite(cast) == np.isfinite(values) if is_float else cast == values
    if not same.all():
        raise ConfigError(f"array '{info.name}' holds values that the model's type {info.dtype} cannot hold")
    return cast


_BATCH = 64
#: A user's samples that no fold is shown: one of so many, at most so many, where there are so many at least. Those that
#: a fold was fitted on agree too well where they are few for the widths of its layers.
_ONE_OF, _MOST_HELD_OUT, _LEAST_GIVEN = 5, 256, 64


def split_samples(arrays: dict[str, Array], fixed: int | None) -> tuple[dict[str, Array], Batches]:
    """Return the samples that a fold is shown, and whole batches that are held out, spread over all samples."""
    batch = fixed or 1
    count, batches = sample_count(arrays), sample_count(arrays) // batch
    held = min(batches // _ONE_OF, max(_MOST_HELD_OUT // batch, 1))
    if count < _LEAST_GIVEN or not held or any(v.ndim and len(v) != count for v in arrays.values()):
        return arrays, []
    apart = np.zeros(batches, bool)
    apart[((np.arange(held) + 0.5) * batches / held).astype(int)] = True
    apart = np.repeat(apart, batch)
    return select_samples(arrays, ~apart), list(in_batches(select_samples(arrays, apart), fixed or _BATCH))


def select_samples(arrays: dict[str, Array], samples: Array) -> dict[str, Array]:
    """Return some samples of arrays, by their indices or a mask; scalars belong to all."""
    return {name: values[samples] if values.ndim else values for name, values in arrays.items()}
