"""The file of weights beside a model, and the consistent replacement of both.

A model and its weights are two files, and no file system renames two at once. So weights never take the place of other
weights: they go to a name that is free (OUT.data, else OUT.<hash>.data), or that holds the same bytes already. The
model, which names them, is moved last; until then the old pair is whole, and after that the new one is. What the old
model alone read is removed then, if it ends with the mark that only files written here end with.
"""

import filecmp
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from mmap import ACCESS_READ, mmap
from pathlib import Path

from onnxfold.files.parts import PartFile
from onnxfold.graph.files.model_files import external_files

#: The last bytes of every file of weights that is written here.
MARK = b"\nweights written by onnxfold\n"

_HASH_DIGITS = 16
_NAME_BYTES = 255


def data_path(model: Path) -> Path:
    """Return where a model's weights go if nothing else is there."""
    return _path_with_ending(model, ".data")


@contextmanager
def place_weights(weights: PartFile, model: Path, like: os.stat_result | None) -> Iterator[str]:
    """Give weights a name beside a model for a block that writes the model; yield the name."""
    weights.file.flush()
    path, is_new = _choose(weights, model)
    try:
        if is_new:
            weights.move_to(path, like)
        yield path.name
    except BaseException:
        # A signal may come right after the model was moved, which reads these weights then.
        if is_new and path.resolve() not in _weights_of(model):
            path.unlink(missing_ok=True)
        raise


@contextmanager
def drop_orphans(model: Path, keep: Iterable[Path]) -> Iterator[None]:
    """Remove the weights of the replaced model, if they were written here and nobody reads them any more."""
    ours = {p.resolve() for p in model.parent.glob("*.data") if _is_ours(p)}
    before = ours & _weights_of(model) if ours else set()
    yield
    if before:
        for path in before - {p.resolve() for p in keep} - _weights_of(model):
            if not _is_named_by_others(path, model):
                with suppress(OSError):
                    path.unlink()


def _weights_of(model: Path) -> set[Path]:
    return {path.resolve() for path in external_files(model)}


def _choose(weights: PartFile, model: Path) -> tuple[Path, bool]:
    """Return a name that holds these weights already, or that was free and is reserved now; and whether it was free."""
    for path in _candidates(weights, model):
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            return path, True
        with suppress(OSError):
            if not path.is_symlink() and path.is_file() and filecmp.cmp(weights.path, path, shallow=False):
                return path, False
    raise AssertionError("there is always another name")


def _candidates(weights: PartFile, model: Path) -> Iterator[Path]:
    yield data_path(model)
    weights.file.seek(0)
    digits = hashlib.file_digest(weights.file, "sha256").hexdigest()[:_HASH_DIGITS]  # type: ignore[arg-type]
    yield _path_with_ending(model, f".{digits}.data")
    for number in count(2):
        yield _path_with_ending(model, f".{digits}-{number}.data")


def _path_with_ending(model: Path, ending: str) -> Path:
    """Return the model's path with an ending, shortened where the name would be longer than names can be."""
    stem = model.name
    while len(os.fsencode(stem + ending)) > _NAME_BYTES:
        stem = stem[:-1]
    return model.with_name(stem + ending)


def _is_ours(path: Path) -> bool:
    with suppress(OSError):
        if path.is_file() and not path.is_symlink() and path.stat().st_size >= len(MARK):
            with path.open("rb") as file:
                file.seek(-len(MARK), os.SEEK_END)
                return file.read() == MARK
    return False


def _is_named_by_others(path: Path, model: Path) -> bool:
    """Whether another model of the folder, a copy of the old one perhaps, names a file of weights."""
    name = path.name.encode()
    for other in path.parent.iterdir():
        if ".onnx" in other.name and other != model and other != path and other.is_file():
            with suppress(ValueError), other.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
                if content.find(name) >= 0:  # ValueError: an empty file cannot be mapped
                    return True
    return False
