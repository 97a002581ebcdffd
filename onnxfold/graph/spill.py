"""Arrays that wait in a temporary file without a name, in the room of those that are gone.

Pages of a file that were written before are written again about ten times as fast as new ones.
"""

import mmap
import tempfile
import weakref
from threading import Lock
from typing import IO

import numpy as np
from onnx import TensorProto

from onnxfold.errors import ModelSaveError
from onnxfold.graph.tensors import Array, DerivedTensor, Weight, bits_per_element, elem_type_of, raw_bytes

#: Smaller weights stay in memory.
_KEPT_BYTES = 1 << 20


class SpillFile:
    """A temporary file, which is gone with the process."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.close()

    def close(self) -> None:
        """Forget the file; arrays that wait in it can still be read."""
        self._file: IO[bytes] | None = None
        self._waiting: list[weakref.ref[SpilledArray]] = []

    def keep(self, values: Array) -> "SpilledArray":
        """Write an array of numbers that are no objects; raises OSError where the disk is full."""
        with self._lock:
            self._file = self._file or tempfile.TemporaryFile(prefix="onnxfold-")  # noqa: SIM115, it lives on
            spilled = SpilledArray(self._file, self._find_room(values.nbytes), values)
            self._waiting.append(weakref.ref(spilled))
            self._file.seek(spilled.begin)
            self._file.write(raw_bytes(values))  # not by `tofile`, which does not say why it fails
            self._file.flush()
        return spilled

    def keep_weight(self, values: Array) -> Weight:
        """Return a weight that is read from the file; a small one, or one of a type that files pack, as it is."""
        if values.nbytes < _KEPT_BYTES or bits_per_element(values.dtype) < 8 or values.dtype.hasobject:
            return values
        proto = TensorProto(
            dims=values.shape, data_type=elem_type_of(values), data_location=TensorProto.EXTERNAL, name="scratch"
        )
        try:
            spilled = self.keep(values)
        except OSError as error:
            raise ModelSaveError(
                f"weights do not fit into the temporary folder '{tempfile.gettempdir()}': {error.strerror or error}; "
                "set TMPDIR to one with more room"
            ) from None
        return DerivedTensor(proto, read=lambda: spilled.load().copy())

    def _find_room(self, size: int) -> int:
        """Return where there is room: the first that is free, or behind all that waits."""
        waiting = [array for known in self._waiting if (array := known()) is not None]
        self._waiting = [weakref.ref(array) for array in waiting]
        begin = 0
        for array in sorted(waiting, key=lambda array: array.begin):
            if array.begin - begin >= size:
                break
            begin = array.end
        return begin


class SpilledArray:
    """An array that waits in a file, from `begin` on and before `end`."""

    def __init__(self, file: IO[bytes], begin: int, values: Array) -> None:
        self._file, self.begin = file, begin
        self.end = begin + -(-values.nbytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        self.dtype, self.shape, self.nbytes = values.dtype, values.shape, values.nbytes

    def load(self) -> Array:
        """Return the array, read-only; only what is read of it takes memory."""
        mapped = _Mapped(self._file.fileno(), self.nbytes, access=mmap.ACCESS_READ, offset=self.begin)
        mapped.spilled = self
        return np.frombuffer(mapped, self.dtype).reshape(self.shape)


class _Mapped(mmap.mmap):
    """A part of a file in memory, whose room is not written again as long as an array lies in it."""

    spilled: SpilledArray
