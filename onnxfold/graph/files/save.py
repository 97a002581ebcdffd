"""Save a :class:`~onnxfold.graph.view.GraphView` as a ModelProto or as files, complete or not at all.

A model and its weights are two files, and no file system renames two at once. So weights never take the place of other
weights: they go to a name that is free (OUT.data, else OUT.<hash>.data), or that holds the same bytes already. The
model, which names them, is moved last; until then the old pair is whole, and after that the new one is. What the old
model alone read is removed then, if it ends with the mark that only files written here end with.
"""

import filecmp
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from itertools import count
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import IO

from onnx import ModelProto, TensorProto, numpy_helper

from onnxfold.errors import ModelSaveError, UnsupportedModelError
from onnxfold.files import Output, Target, explain_errors, replace_file, target_of
from onnxfold.files.parts import PartFile, folder_lock, part_file
from onnxfold.graph.files.model_files import external_files, lazy_files
from onnxfold.graph.tensors import HALF_TYPES, LazyTensor, bits_per_element, loaded, pieces_of, proto_of, raw_bytes
from onnxfold.graph.view import GraphView

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


#: Protobuf cannot hold more in one message.
PROTOBUF_LIMIT = 2**31 - 2**20

#: Weights below this stay inside the model file when external data is written.
_INLINE_BYTES = 1024
_ALIGNMENT = 4096


def weight_bytes(view: GraphView) -> int:
    """Return the size of all weights in bytes."""
    return sum(weight.nbytes for weight in view.weights.values())


def file_bytes(view: GraphView) -> int:
    """Return the size of the file that holds the model with its weights inside, without writing it."""
    graph = int(view.graph.ByteSize())
    filled = graph + sum(_field(_proto_bytes(view, name)) for name in view.weights)
    return int(view.model.ByteSize()) - _field(graph) + _field(filled)


def loaded_bytes(view: GraphView) -> int:
    """Return the bytes of a model's weights in onnxruntime, which on a CPU holds half precision as float32, too."""
    more = sum(4 * view.weight_size(name) for name in view.weights if view.weight_type(name) in HALF_TYPES)
    return weight_bytes(view) + more


def to_model(view: GraphView) -> ModelProto:
    """Return the view as one ModelProto with its weights inside, which has at most protobuf's 2 GB."""
    if weight_bytes(view) > PROTOBUF_LIMIT:
        raise UnsupportedModelError("the model exceeds 2 GB, more than one ModelProto can hold: save it to a path")
    model = deepcopy(view.model)
    model.graph.initializer.extend(proto_of(name, weight) for name, weight in view.weights.items())
    return model


def save(view: GraphView, path: Path, *, external_data: bool = False, keep: Iterable[Path] = ()) -> None:
    """Write the model to `path`, whole or not at all; it is replaced only when everything has been written.

    With `external_data`, and always where a single file would exceed 2 GB, weights go to a file beside it. That is
    called ``<path>.data``, or ``<path>.<hash>.data`` where there is another file of that name. Files to `keep` stay
    although the model that is replaced had its weights there.
    """
    target = target_of(path)
    if target.is_null:
        return
    model, keep = target.real, [*keep, *lazy_files(view)]
    if not external_data and weight_bytes(view) <= PROTOBUF_LIMIT:
        payload = to_model(view).SerializeToString(deterministic=True)
        with folder_lock(model.parent), drop_orphans(model, keep), replace_file(path) as file:
            file.write(payload)
        return
    _require_one_folder(target)
    is_there = target.status is not None
    with explain_errors(data_path(path)), part_file(model.parent, private=is_there) as weights:
        tensors = _write_weights(view, weights.file)
        with folder_lock(model.parent), drop_orphans(model, keep), place_weights(weights, model, target.status) as name:
            payload = _with_external(view, tensors, name)
            with replace_file(path) as file:
                file.write(payload)


def outputs_of(path: Path, role: str, *, external_data: bool = False) -> list[Output]:
    """Return the files that :func:`save` writes, to be checked before any work; refuse a path that cannot be one."""
    model, target = Output(path, role), target_of(path)
    if not external_data or target.is_null:
        return [model]
    _require_one_folder(target)
    return [model, Output(data_path(target.real), f"the weights of {role}")]


def _require_one_folder(target: Target) -> None:
    if target.path.is_symlink() and target.path.parent.resolve() != target.real.parent:
        raise ModelSaveError(
            f"'{target.path}' is a link to another folder, '{target.real.parent}', and the weights are looked for "
            "beside the model: give the path that the link leads to"
        )


def _write_weights(view: GraphView, data: IO[bytes]) -> dict[str, tuple[int, int]]:
    """Write all large weights; return the offset and length of each."""
    written = {}
    for name, weight in view.weights.items():
        if weight.nbytes < _INLINE_BYTES:
            continue
        offset = -(-data.tell() // _ALIGNMENT) * _ALIGNMENT
        data.seek(offset)
        if bits_per_element(weight.dtype) < 8:
            data.write(numpy_helper.from_array(loaded(weight)).raw_data)
        else:
            for piece in pieces_of(weight):
                data.write(raw_bytes(piece))  # not by `tofile`, which does not say why it fails
        written[name] = (offset, data.tell() - offset)
    data.write(MARK)
    return written


def _with_external(view: GraphView, written: Mapping[str, tuple[int, int]], location: str) -> bytes:
    """Return the model with its large weights in another file."""
    model = deepcopy(view.model)
    for name, weight in view.weights.items():
        if name not in written:
            model.graph.initializer.append(proto_of(name, weight))
            continue
        tensor = TensorProto(name=name, dims=weight.shape, data_type=view.weight_type(name))
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in zip(("location", "offset", "length"), (location, *written[name]), strict=True):
            tensor.external_data.add(key=key, value=str(value))
        model.graph.initializer.append(tensor)
    return bytes(model.SerializeToString(deterministic=True))


def _field(size: int) -> int:
    """Return the bytes of a message of this size inside another message: a tag, the length as a varint, and itself."""
    return 1 + max(1, -(-size.bit_length() // 7)) + size


def _proto_bytes(view: GraphView, name: str) -> int:
    """Return the size of :func:`proto_of`, without reading weights that it would have to read or to copy."""
    weight = view.weights[name]
    is_there = isinstance(weight, LazyTensor) and not weight.is_external and weight.proto.name == name
    if is_there or bits_per_element(weight.dtype) < 8 or weight.dtype.hasobject:
        return int(proto_of(name, weight).ByteSize())
    head = TensorProto(name=name, dims=weight.shape, data_type=view.weight_type(name))
    return int(head.ByteSize()) + _field(weight.nbytes)
