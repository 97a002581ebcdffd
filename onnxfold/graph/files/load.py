"""Load a path or a ModelProto as a :class:`~onnxfold.graph.view.GraphView`."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, TensorProto

from onnxfold.config import checks
from onnxfold.errors import (
    ConfigError,
    ModelLoadError,
    ModelNotFoundError,
    OnnxFoldError,
    OptionTypeError,
    UnsupportedModelError,
)
from onnxfold.graph.files import well_formed
from onnxfold.graph.nodes import DEFAULT_DOMAINS, model_nodes
from onnxfold.graph.shapes.first_layers import fixed_channels
from onnxfold.graph.tensors import LazyTensor, locations, stamp_of, to_proto
from onnxfold.graph.view import GraphView

#: The oldest operator set whose operators mean what they mean today (Reshape with a shape input,
#: BatchNormalization without is_test, numpy broadcasting).
MIN_OPSET = 7

ModelLike = str | Path | ModelProto
F = TypeVar("F", bound=Callable[..., Any])


@contextmanager
def blame_broken_file(model: ModelLike) -> Iterator[None]:
    """Explain what work on a model stumbles over by the model, if onnx's checker rejects it.

    Models that the checker rejects are worked on all the same, because onnxruntime runs many of them.
    """
    try:
        with np.errstate(all="ignore"):  # values that are not finite are searched, and reported by name
            yield
    except OnnxFoldError:
        raise
    except Exception as error:
        problem = checker_problem(model)
        if not problem:
            raise
        label = "the given ModelProto" if isinstance(model, ModelProto) else f"'{model}'"
        raise ModelLoadError(f"{label} is not a valid ONNX model: {problem}") from error


def blames_broken_files(function: F) -> F:
    """Let :func:`blame_broken_file` explain what a function of a model stumbles over."""

    @wraps(function)
    def explained(model: ModelLike, *args: Any, **kwargs: Any) -> Any:
        with blame_broken_file(model):
            return function(model, *args, **kwargs)

    return cast(F, explained)


def checker_problem(model: ModelLike, *, full_check: bool = True) -> str:
    """Return in one line what onnx's checker says against a model, by default with shape inference, '' for nothing."""
    try:
        onnx.checker.check_model(model if isinstance(model, ModelProto) else str(model), full_check=full_check)
    except Exception as error:  # checker and shape inference raise different types
        return " ".join(str(error).split())[:400]
    return ""


def load(model: ModelLike, input_shapes: Mapping[str, Sequence[int]] | None = None) -> GraphView:
    """Open a model for reading and editing without copying its weights; the model is left untouched.

    `input_shapes` are dimensions to assume for inputs that have symbolic ones. Channels that a file leaves free, and a
    first layer fixes, are written into it.
    """
    proto, base_dir, label = _read(model)
    _check(proto, label)
    if not proto.graph.node or not proto.graph.output:
        raise UnsupportedModelError("the model has no nodes or no outputs: there is nothing to fold")
    view = _to_view(proto, base_dir, label)
    if channels := fixed_channels(view):
        view.fix_input_shapes(channels)
    if input_shapes is not None:
        view.assume(_checked_shapes(view, input_shapes))
    return view


def require_regular_file(path: Path) -> None:
    """Refuse a FIFO, device or socket at once: opening it could wait for ever, or never end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ModelNotFoundError(f"'{path}' is a FIFO, a device or a socket: give the path of an .onnx file")


def _path(model: object) -> Path:
    if isinstance(model, bytes | bytearray | memoryview):
        raise OptionTypeError("a model is a path or a ModelProto, not bytes: give onnx.load_model_from_string(...)")
    name = os.fspath(model) if isinstance(model, os.PathLike) else model
    if not isinstance(name, str):
        raise OptionTypeError(f"a model is a path or a ModelProto, not {type(model).__name__}")
    if "\0" in name:
        raise ModelNotFoundError("the path of the model contains a zero byte, which no path may")
    path = Path(name)
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise ModelNotFoundError(f"'{path}' does not exist: check the path of the input model") from None
    except OSError as error:
        raise ModelNotFoundError(f"'{path}' cannot be read: {error.strerror}") from None
    return path


def _read(model: ModelLike) -> tuple[ModelProto, Path | None, str]:
    if isinstance(model, ModelProto):
        return model, None, "the given ModelProto"
    path = _path(model)
    if path.is_dir():
        raise ModelNotFoundError(f"'{path}' is a folder: give the path of an .onnx file")
    require_regular_file(path)
    try:
        proto = onnx.load(str(path), load_external_data=False)
    except DecodeError:
        raise ModelLoadError(f"'{path}' is not an ONNX model, or it is truncated: export it again") from None
    except OSError as error:
        raise ModelLoadError(f"'{path}' cannot be read: {error.strerror or error}") from None
    except Exception as error:  # onnx.load raises what its serializer raises
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelLoadError(f"'{path}' is not an ONNX model: {reason}") from None
    return proto, path.resolve().parent, f"'{path}'"


def _check(proto: ModelProto, label: str) -> None:
    if not proto.HasField("graph") or not proto.opset_import:
        raise ModelLoadError(f"{label} is not an ONNX model: it has no graph or no operator set")
    newest = onnx.defs.onnx_opset_version()
    version = max((o.version for o in proto.opset_import if o.domain in DEFAULT_DOMAINS), default=newest)
    if version < MIN_OPSET:
        raise UnsupportedModelError(
            f"{label} uses opset {version}, onnxfold needs {MIN_OPSET} or newer: "
            f"convert it with onnx.version_converter.convert_version(model, 17)"
        )
    if version > newest:
        raise UnsupportedModelError(
            f"{label} uses opset {version}, the installed onnx package knows up to {newest}: upgrade onnx"
        )
    if problem := well_formed.model_problem(proto, version):
        raise ModelLoadError(f"{label} is broken: {problem}")


def _to_view(proto: ModelProto, base_dir: Path | None, label: str) -> GraphView:
    skeleton = ModelProto(**{field.name: value for field, value in proto.ListFields() if field.name != "graph"})
    parts = {field.name: value for field, value in proto.graph.ListFields() if field.name != "initializer"}
    skeleton.graph.CopyFrom(GraphProto(**parts))
    weights = {}
    folder = base_dir or Path()
    stamps = {place: stamp_of(folder / place) for place in set(locations(proto.graph.initializer))}
    for tensor in proto.graph.initializer:
        weight = LazyTensor(tensor, base_dir, stamps.get(next(locations([tensor]), "")))
        if tensor.name in weights:
            raise ModelLoadError(f"{label} is broken: it has two initializers called '{tensor.name}'")
        if not well_formed.payload_fits(weight):
            raise ModelLoadError(f"{label} is broken: initializer '{tensor.name}' does not match its shape")
        weights[tensor.name] = weight
    try:
        unsorted = well_formed.sort_nodes(skeleton, weights)
    except well_formed.WiringError as error:
        raise ModelLoadError(f"{label} is broken: {error}") from None
    well_formed.require_inlinable(skeleton)  # shape inference follows every call, too
    _read_inner_payloads(skeleton, base_dir, label)
    view = GraphView(skeleton, weights)
    if unsorted:
        view.notes.append(f"the nodes were sorted: {unsorted} of them stood before a node that they read")
    return view


def _read_inner_payloads(model: ModelProto, base_dir: Path | None, label: str) -> None:
    """Read the external data of tensors outside of the main graph's initializers: the model may move."""
    for node in model_nodes(model):
        for attr in node.attribute:
            inner = (tensor for graph in (attr.g, *attr.graphs) for tensor in graph.initializer)
            for tensor in (*([attr.t] if attr.HasField("t") else ()), *attr.tensors, *inner):
                if not well_formed.payload_fits(LazyTensor(tensor, base_dir)):
                    raise ModelLoadError(
                        f"{label} is broken: a tensor of {well_formed.node_label(node)} does not match its shape"
                    )
                if tensor.data_location == TensorProto.EXTERNAL:
                    tensor.CopyFrom(to_proto(tensor.name, LazyTensor(tensor, base_dir).load()))


def _checked_shapes(view: GraphView, shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    checked = {}
    for name, shape in checks.shapes("input_shapes", shapes).items():
        if name not in view.input_names:
            raise ConfigError(f"input_shapes: '{name}' is not an input; inputs: {', '.join(view.input_names)}")
        known = view.shape(name)
        if known is not None and len(known) != len(shape):
            raise ConfigError(f"input_shapes: input '{name}' has {len(known)} dimensions, {len(shape)} were given")
        for have, want in zip(known or (), shape, strict=False):
            if have is not None and have != want:
                raise ConfigError(f"input_shapes: input '{name}' has the fixed shape {known}, not {tuple(shape)}")
        checked[name] = shape
    return checked
