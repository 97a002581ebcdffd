"""Save a :class:`~onnxfold.graph.view.GraphView` as a ModelProto or as files, complete or not at all."""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import onnx
from onnx import ModelProto, TensorProto

from onnxfold.errors import ModelSaveError, UnsupportedModelError
from onnxfold.files import Output, Target, explain_errors, replace_file, target_of
from onnxfold.files.locks import folder_lock
from onnxfold.files.parts import part_file
from onnxfold.graph.files.model_files import lazy_files
from onnxfold.graph.files.weight_file import MARK, data_path, drop_orphans, place_weights
from onnxfold.graph.tensors import LazyTensor, append_array, bits_per_element, loaded, proto_of, to_proto
from onnxfold.graph.view import GraphView

#: Protobuf cannot hold more in one message.
PROTOBUF_LIMIT = 2**31 - 2**20

#: Weights below this stay inside the model file when external data is written.
_INLINE_BYTES = 1024
_ALIGNMENT = 4096


def weight_bytes(view: GraphView) -> int:
    """Return the size of all weights in bytes."""
    return sum(_bytes(view, name) for name in view.weights)


def file_bytes(view: GraphView) -> int:
    """Return the size of the file that holds the model with its weights inside, without writing it."""
    graph = int(view.graph.ByteSize())
    filled = graph + sum(_field(_proto_bytes(view, name)) for name in view.weights)
    return int(view.model.ByteSize()) - _field(graph) + _field(filled)


def loaded_bytes(view: GraphView) -> int:
    """Return the bytes of a model's weights in onnxruntime, which on a CPU holds half precision as float32, too."""
    halves = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
    more = sum(4 * view.weight_size(name) for name in view.weights if view.weight_type(name) in halves)
    return weight_bytes(view) + more


def to_model(view: GraphView) -> ModelProto:
    """Return the view as one ModelProto with its weights inside, which has at most protobuf's 2 GB."""
    if weight_bytes(view) > PROTOBUF_LIMIT:
        raise UnsupportedModelError("the model exceeds 2 GB, more than one ModelProto can hold: save it to a path")
    model = ModelProto()
    model.CopyFrom(view.model)
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
    with ExitStack() as stack:
        stack.enter_context(explain_errors(data_path(path)))
        weights = stack.enter_context(part_file(model.parent, private=target.status is not None))
        tensors = _write_weights(view, weights.file)
        stack.enter_context(folder_lock(model.parent))
        stack.enter_context(drop_orphans(model, keep))
        location = stack.enter_context(place_weights(weights, model, target.status))
        payload = _with_external(view, tensors, location)
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
    if target.is_linked_elsewhere:
        raise ModelSaveError(
            f"'{target.path}' is a link to another folder, '{target.real.parent}', and the weights are looked for "
            "beside the model: give the path that the link leads to"
        )


def _write_weights(view: GraphView, data: IO[bytes]) -> dict[str, tuple[int, int]]:
    """Write all large weights; return the offset and length of each."""
    written = {}
    for name in view.weights:
        if _bytes(view, name) < _INLINE_BYTES:
            continue
        offset = -(-data.tell() // _ALIGNMENT) * _ALIGNMENT
        data.seek(offset)
        weight = view.weights[name]
        if isinstance(weight, LazyTensor) and weight.is_external:
            weight.copy_to(data)
        elif bits_per_element((values := loaded(weight)).dtype) < 8:
            data.write(to_proto(name, values).raw_data)
        else:
            append_array(values, data)
        written[name] = (offset, data.tell() - offset)
    data.write(MARK)
    return written


def _with_external(view: GraphView, written: Mapping[str, tuple[int, int]], location: str) -> bytes:
    """Return the model with its large weights in another file."""
    model = ModelProto()
    model.CopyFrom(view.model)
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
    value, kind = view.weights[name], view.weight_type(name)
    is_there = isinstance(value, LazyTensor) and not value.is_external and value.proto.name == name
    packs = bits_per_element(onnx.helper.tensor_dtype_to_np_dtype(kind)) < 8 or kind == TensorProto.STRING
    if is_there or packs:
        return int(proto_of(name, value).ByteSize())
    head = TensorProto(name=name, dims=value.shape, data_type=kind)
    return int(head.ByteSize()) + _field(_bytes(view, name))


def _bytes(view: GraphView, name: str) -> int:
    return view.weight_size(name) * onnx.helper.tensor_dtype_to_np_dtype(view.weight_type(name)).itemsize
