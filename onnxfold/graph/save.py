"""From a :class:`~onnxfold.graph.view.GraphView` to a ModelProto or to files, all or nothing."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import onnx
from onnx import ModelProto, TensorProto

from onnxfold.errors import ModelSaveError, UnsupportedModelError
from onnxfold.graph.tensors import LazyTensor, bits_per_element, to_proto
from onnxfold.graph.view import GraphView

#: Protobuf cannot hold more in one message.
PROTOBUF_LIMIT = 2**31 - 2**20

#: Weights below this stay inside the model file when external data is written.
_INLINE_BYTES = 1024
_ALIGNMENT = 4096


def weight_bytes(view: GraphView) -> int:
    """Return the size of all weights in bytes."""
    return sum(_bytes(view, name) for name in view.weights)


def to_model(view: GraphView) -> ModelProto:
    """Return the view as one ModelProto with its weights inside.

    Raises
    ------
    UnsupportedModelError
        If it would exceed protobuf's 2 GB.
    """
    if weight_bytes(view) > PROTOBUF_LIMIT:
        raise UnsupportedModelError("the model exceeds 2 GB, more than one ModelProto can hold: save it to a path")
    model = ModelProto()
    model.CopyFrom(view.model)
    for name in view.weights:
        model.graph.initializer.append(_proto(view, name))
    return model


def save(view: GraphView, path: Path, *, external_data: bool = False) -> None:
    """Write the model to `path` through a temporary file in the same folder.

    Parameters
    ----------
    view : GraphView
        What to write.
    path : Path
        Target; replaced only when everything has been written.
    external_data : bool
        Write the weights to ``<path>.data``; always done where a single file would exceed 2 GB.

    Raises
    ------
    ModelSaveError
        If the folder does not exist or cannot be written.
    """
    if external_data or weight_bytes(view) > PROTOBUF_LIMIT:
        _save_external(view, path)
        return
    payload = to_model(view).SerializeToString(deterministic=True)
    with replacing(path) as file:
        file.write(payload)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file that replaces `path` when the block ends without an error.

    Raises
    ------
    ModelSaveError
        If the file cannot be created or moved into place.
    """
    check_writable(path)
    try:
        fd, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    except OSError as error:
        raise ModelSaveError(f"cannot write to '{path.parent}': {error.strerror}") from None
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ModelSaveError(f"cannot write '{path}': {error.strerror}") from None
        raise


def check_writable(path: Path) -> None:
    """Raise early if `path` cannot become a file.

    Raises
    ------
    ModelSaveError
        If its folder does not exist or cannot be written, or if it is a folder itself.
    """
    if path.is_dir():
        raise ModelSaveError(f"'{path}' is a folder: give the path of the output file")
    if not path.parent.is_dir():
        raise ModelSaveError(f"the folder '{path.parent}' does not exist: create it first")
    if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise ModelSaveError(f"'{path}' cannot be written: permission denied")


def _save_external(view: GraphView, path: Path) -> None:
    data_path = path.with_name(path.name + ".data")
    model = ModelProto()
    model.CopyFrom(view.model)
    with replacing(path) as file, replacing(data_path) as data:  # both are complete before either is moved
        for name in view.weights:
            if _bytes(view, name) < _INLINE_BYTES:
                model.graph.initializer.append(_proto(view, name))
                continue
            offset = -(-data.tell() // _ALIGNMENT) * _ALIGNMENT
            data.seek(offset)
            weight = view.weights[name]
            if isinstance(weight, LazyTensor) and weight.is_external:
                weight.copy_to(data)
            elif bits_per_element(view.weight(name).dtype) < 8:
                data.write(to_proto(name, view.weight(name)).raw_data)
            else:
                view.weight(name).tofile(data)
            tensor = TensorProto(name=name, dims=weight.shape, data_type=view.weight_type(name))
            tensor.data_location = TensorProto.EXTERNAL
            length = data.tell() - offset
            for key, value in (("location", data_path.name), ("offset", offset), ("length", length)):
                tensor.external_data.add(key=key, value=str(value))
            model.graph.initializer.append(tensor)
        file.write(model.SerializeToString(deterministic=True))


def _proto(view: GraphView, name: str) -> TensorProto:
    value = view.weights[name]
    if isinstance(value, LazyTensor) and not value.is_external and value.proto.name == name:
        return value.proto
    return to_proto(name, view.weight(name))


def _bytes(view: GraphView, name: str) -> int:
    return view.weight_size(name) * onnx.helper.tensor_dtype_to_np_dtype(view.weight_type(name)).itemsize


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
