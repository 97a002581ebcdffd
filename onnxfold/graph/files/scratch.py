"""Edited weights of a model that is larger than memory: they wait in a temporary file until the model is written."""

import tempfile
from dataclasses import dataclass, field
from threading import Lock

import numpy as np
from onnx import TensorProto, helper

from onnxfold.errors import ModelSaveError
from onnxfold.graph.tensors import Array, ComputedTensor, LazyTensor, bits_per_element, elem_type_of

#: Smaller weights stay in memory.
_LEAST_BYTES = 1 << 20


class Scratch:
    """A temporary file without a name, which is gone with the process."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="onnxfold-")  # noqa: SIM115, it lives as long as the weights in it
        self._lock = Lock()

    def keep(self, values: Array) -> "LazyTensor | Array":
        """Return a weight that is read from the file; a small one, or one of a type that files pack, as it is."""
        if values.nbytes < _LEAST_BYTES or bits_per_element(values.dtype) < 8 or values.dtype.hasobject:
            return values
        proto = TensorProto(
            dims=values.shape, data_type=elem_type_of(values), data_location=TensorProto.EXTERNAL, name="scratch"
        )
        try:
            with self._lock:
                offset = self._file.seek(0, 2)
                self._file.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
        except OSError as error:
            raise ModelSaveError(
                f"weights do not fit into the temporary folder '{tempfile.gettempdir()}': {error.strerror or error}; "
                "set TMPDIR to one with more room"
            ) from None
        return KeptTensor(proto, scratch=self, offset=offset)

    def read(self, offset: int, into: Array) -> None:
        """Fill an array with what lies at an offset."""
        with self._lock:
            self._file.seek(offset)
            self._file.readinto(into.reshape(-1).view(np.uint8).data)


@dataclass(frozen=True)
class KeptTensor(ComputedTensor):
    """An edited weight in a :class:`Scratch`."""

    scratch: Scratch = field(kw_only=True)
    offset: int = field(kw_only=True)

    def load(self) -> Array:
        """Return the values."""
        values = np.empty(self.shape, helper.tensor_dtype_to_np_dtype(self.elem_type))
        self.scratch.read(self.offset, values)
        return values
