"""Files of a model: its own, and those that hold its weights."""

import os
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path

import onnx
from onnx import ModelProto, TensorProto

from onnxfold.files import Read
from onnxfold.graph.nodes import messages
from onnxfold.graph.tensors import LazyTensor, locations
from onnxfold.graph.view import GraphView

#: Protobuf holds no more in one message, so a larger file is no model.
_MOST_BYTES = 2**31


def claims_on(
    models: Iterable[str | PathLike[str] | ModelProto], data: Mapping[str, str | Path | None] | None = None
) -> Iterator[Read]:
    """Return every file that a run reads."""
    for role, path in (data or {}).items():
        if path is not None and Path(path).is_dir():
            yield from (Read(Path(place, name), f"a file of {role}") for place, _, n in os.walk(path) for name in n)
        elif path is not None:
            yield Read(Path(path), f"the file of {role}")
    for model in models:
        if isinstance(model, str | PathLike):  # whatever else it may be is refused when it is loaded
            yield Read(Path(model), "the input model")
            for path in external_files(Path(model)):
                yield Read(path, f"the file that holds weights of the input model '{model}'")


def external_files(path: Path) -> list[Path]:
    """Return the files that hold weights of a model; none if it is not a regular file or not a model.

    The files need not exist, and may lie where no weights are read from.
    """
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return []
        model = onnx.load(str(path), load_external_data=False)
    except Exception:  # whoever loads it says what is wrong
        return []
    folder = path.resolve().parent
    tensors = (message for message in messages(model) if isinstance(message, TensorProto))
    return [folder / location for location in dict.fromkeys(locations(tensors))]


def lazy_files(view: GraphView) -> list[Path]:
    """Return the files that a view still reads weights from."""
    lazy = [w for w in view.weights.values() if isinstance(w, LazyTensor) and w.base_dir is not None]
    return list(dict.fromkeys(Path(w.base_dir or "", location) for w in lazy for location in locations([w.proto])))
