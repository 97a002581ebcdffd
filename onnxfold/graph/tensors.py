"""Weights that are read on first use.

A :class:`LazyTensor` points at a ``TensorProto``, or at a range of an external data file; nothing is
copied until :meth:`LazyTensor.load` is called. Edited weights are plain arrays in the view's overlay; those of a model
that is larger than memory wait in a temporary file (:class:`onnxfold.graph.spill.SpillFile`).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto, helper, numpy_helper

from onnxfold.errors import ModelLoadError
from onnxfold.graph.nodes import DEFAULT_DOMAINS

#: Device, inode, size and time of a file.
Stamp = tuple[int, int, int, int]

Array = npt.NDArray[Any]
Matrix = npt.NDArray[np.float64]

HALF_TYPES = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
FLOAT_TYPES = HALF_TYPES | {TensorProto.FLOAT, TensorProto.DOUBLE}


@dataclass(frozen=True)
class LazyTensor:
    """A weight as it lies in the model file."""

    proto: TensorProto  # the tensor; its payload may be elsewhere
    base_dir: Path | None = None  # folder that external data locations are relative to
    #: What :func:`stamp_of` said of the external file when the model was loaded. A file that is another one by the time
    #: that it is read holds the weights of another model.
    stamp: Stamp | None = field(default=None, compare=False)
    is_edited: ClassVar[bool] = False  # whether it is not what a file of the model holds

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions."""
        return tuple(self.proto.dims)

    @property
    def elem_type(self) -> int:
        """ONNX element type (``TensorProto.FLOAT`` ...)."""
        return int(self.proto.data_type)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of its elements in an array."""
        return np.dtype(helper.tensor_dtype_to_np_dtype(self.proto.data_type))

    @property
    def nbytes(self) -> int:
        """Bytes of the values as an array."""
        return self.size * self.dtype.itemsize

    @property
    def stored_bytes(self) -> int:
        """Length of the raw payload."""
        return -(-self.size * bits_per_element(self.dtype) // 8)

    @property
    def is_external(self) -> bool:
        """Whether the payload lies in another file."""
        return bool(self.proto.data_location == TensorProto.EXTERNAL)

    @property
    def _lies_as_read(self) -> bool:
        """Whether another file holds its values, none of which shares a byte with others."""
        return self.is_external and not self.is_edited and self.stored_bytes == self.nbytes

    def load(self) -> Array:
        """Return the values."""
        if self.elem_type == TensorProto.STRING:  # as bytes: a text in a model need not be UTF-8
            return np.array([bytes(text) for text in self.proto.string_data], object).reshape(self.shape)
        if not self.is_external:
            return numpy_helper.to_array(self.proto)
        # Not mapped: pages of a mapped file stay resident, and a model of many GB would fill the memory.
        raw = next(self._read(np.dtype(np.uint8), self.stored_bytes), np.zeros(0, np.uint8))
        if self._lies_as_read:
            return raw.view(self.dtype).reshape(self.shape)
        return numpy_helper.to_array(TensorProto(dims=self.shape, data_type=self.elem_type, raw_data=raw.tobytes()))

    def mapped(self) -> Array:
        """Return the values, read-only; of external data only the pages that are touched are read.

        For one who reads a few rows of a large table, and forgets it soon: see :meth:`load`.
        """
        if not self._lies_as_read or not self.size:
            return self.load()
        path, offset = self._place()
        # Kernels want aligned values; of a file that is too short, `load` says so.
        if offset % self.dtype.itemsize or path.stat().st_size < offset + self.stored_bytes:
            return self.load()
        return np.memmap(path, self.dtype, "r", offset, self.shape)

    def pieces(self, elements: int) -> Iterator[Array]:
        """Yield the values in order, flat, so many at a time; external data are read piece by piece."""
        return self._read(self.dtype, elements) if self._lies_as_read else pieces_of(self.load(), elements)

    def _read(self, dtype: np.dtype[Any], most: int) -> Iterator[Array]:
        """Yield what lies in the external file, as so many numbers of a type at a time."""
        path, offset = self._place()
        count = self.stored_bytes // dtype.itemsize
        for start in range(0, count, max(most, 1)):
            values = np.fromfile(path, dtype, min(most, count - start), offset=offset + start * dtype.itemsize)
            if len(values) < min(most, count - start):
                raise ModelLoadError(f"external data file '{path}' is too short for tensor '{self.proto.name}'")
            yield values

    def _place(self) -> tuple[Path, int]:
        """Return the external file and the offset in it."""
        entries = {e.key: e.value for e in self.proto.external_data}
        path = external_path(entries.get("location", ""), self.base_dir, self.proto.name)
        if self.stamp is not None and stamp_of(path) != self.stamp:
            raise ModelLoadError(f"external data file '{path}' changed while the model was in use: start again")
        return path, int(entries.get("offset", "0"))


def stamp_of(path: Path) -> Stamp | None:
    """Return the properties that change with a file's content; None if the file does not exist."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def locations(tensors: Iterable[TensorProto]) -> Iterator[str]:
    """Return the locations of all payloads in other files."""
    for tensor in tensors:
        if tensor.data_location == TensorProto.EXTERNAL:
            yield from (entry.value for entry in tensor.external_data if entry.key == "location")


@dataclass(frozen=True)
class DerivedTensor(LazyTensor):
    """An edited weight whose values a function gives whenever they are read, so that they need not stay in memory.

    Its proto has their shape and type, and says where the weight lies that they are computed from, if in a file of the
    model.
    """

    is_edited: ClassVar[bool] = True
    read: Callable[[], Array] = field(kw_only=True)

    @classmethod
    def of(cls, source: LazyTensor, shape: Sequence[int], compute: Callable[[Array], Array]) -> "DerivedTensor":
        """Return the tensor that `compute`, which keeps the element type, makes of a weight."""
        proto = deepcopy(source.proto)
        proto.dims[:] = shape
        return cls(proto, source.base_dir, source.stamp, read=lambda: compute(source.load()))

    def load(self) -> Array:
        """Return the values; raises what reading the source raises."""
        return self.read()


#: A weight as graphs hold it: read on first use, or edited.
Weight = LazyTensor | Array


#: Elements that are read at a time.
_PIECE = 1 << 22


def raw_bytes(values: Array) -> memoryview:
    """Return the bytes of an array in order, of any element type; copied only where they do not lie so in memory."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def pieces_of(weight: Weight, elements: int = _PIECE) -> Iterator[Array]:
    """Yield the values of a weight in order, flat, some millions at a time."""
    if isinstance(weight, LazyTensor):
        return weight.pieces(elements)
    flat = weight.reshape(-1)
    return (flat[start : start + elements] for start in range(0, flat.size, elements))


#: Attributes of a Constant that hold numbers, and the type of these.
_NUMBERS = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}


def constant_value(node: NodeProto) -> Weight | None:
    """Return the numbers of a Constant; None for other nodes, for texts, and for a parameter of a function."""
    if node.op_type != "Constant" or node.domain not in DEFAULT_DOMAINS or len(node.attribute) != 1:
        return None
    (attr,) = node.attribute
    if attr.ref_attr_name:
        return None
    if attr.name == "value":
        return LazyTensor(attr.t)
    kind = _NUMBERS.get(attr.name)
    return None if kind is None else np.array(helper.get_attribute_value(attr), kind)


def type_of(weight: Weight) -> int:
    """Return the ONNX element type of a weight without reading it."""
    return weight.elem_type if isinstance(weight, LazyTensor) else elem_type_of(weight)


def proto_of(name: str, weight: Weight) -> TensorProto:
    """Return a weight as protobuf: the message of the model where that holds it under this name."""
    if isinstance(weight, LazyTensor) and not (weight.is_external or weight.is_edited) and weight.proto.name == name:
        return weight.proto
    return to_proto(name, loaded(weight))


def loaded(weight: Weight) -> Array:
    """Return the values of a weight."""
    return weight.load() if isinstance(weight, LazyTensor) else weight


def external_path(location: str, base_dir: Path | None, tensor: str) -> Path:
    """Resolve an external data location inside the model's folder."""
    if base_dir is None:
        raise ModelLoadError(f"tensor '{tensor}' has external data but the model came without a path: pass the path")
    try:
        path = (base_dir / location).resolve()
        there = path.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # a name that is too long, a loop of links
        raise ModelLoadError(
            f"tensor '{tensor}': external data location '{location}' cannot be read: {error}"
        ) from None
    if not location or not path.is_relative_to(base_dir.resolve()):
        raise ModelLoadError(f"tensor '{tensor}': external data location '{location}' is outside the model's folder")
    if not there:
        raise ModelLoadError(f"tensor '{tensor}': external data file '{path}' does not exist; put it beside the model")
    return path


def bits_per_element(dtype: np.dtype[np.generic]) -> int:
    """Return the bits per element in a file; numpy unpacks each to a byte."""
    for info in (ml_dtypes.finfo, ml_dtypes.iinfo) if dtype.itemsize == 1 and dtype.kind == "V" else ():
        with suppress(ValueError):
            return int(info(dtype).bits)
    return dtype.itemsize * 8


def is_float(elem_type: int) -> bool:
    """Whether an ONNX element type is one of the float types that weights have."""
    return elem_type in FLOAT_TYPES


def type_in_onnxruntime(text: str) -> int:
    """Return the ONNX element type that onnxruntime calls ``tensor(...)``; 0 for what is no tensor."""
    return int(getattr(TensorProto, text.removeprefix("tensor(").removesuffix(")").upper(), 0))


def working_type(values: Array) -> np.dtype[np.floating]:
    """Return the type arithmetic happens in: float64 for double weights, else float32."""
    return np.dtype(np.float64 if values.dtype == np.float64 else np.float32)


def largest_float(dtype: np.dtype[Any]) -> float:
    """Return the largest number of a float type."""
    return float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]


def to_proto(name: str, values: Array) -> TensorProto:
    """Return `values` as a ``TensorProto`` called `name`."""
    return numpy_helper.from_array(np.asarray(values, order="C"), name)


def elem_type_of(values: Array) -> int:
    """Return the ONNX element type of an array."""
    return int(helper.np_dtype_to_tensor_dtype(values.dtype))


Shape = tuple[int | None, ...]

#: Element type, dimensions, and the symbol of each dimension ('' where it has none).
TensorType = tuple[int, Shape, tuple[str, ...]]


def known_dimensions(kind: TensorType) -> list[int | str | None]:
    """Return the dimensions: numbers, symbols, or None."""
    return [d if d is not None else s or None for d, s in zip(kind[1], kind[2], strict=True)]
