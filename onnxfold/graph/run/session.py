"""Sessions that run models in onnxruntime: their inputs, and a float32 twin where kernels lack the float type."""

import os
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import AttributeProto, ModelProto, TensorProto, TypeProto, helper, numpy_helper

from onnxfold.config.quantities import show_bytes
from onnxfold.errors import MemoryLimitError, OnnxFoldError, VerificationError
from onnxfold.graph.files.load import load, require_regular_file
from onnxfold.graph.files.save import save, to_model
from onnxfold.graph.nodes import is_quantized, messages
from onnxfold.graph.run import loops
from onnxfold.graph.run.loops import limit_run, open_loop
from onnxfold.graph.run.runtime import session_options
from onnxfold.graph.shapes.footprint import Footprint, feed_shapes
from onnxfold.graph.tensors import FLOAT_TYPES, Array, Shape, bits_per_element, type_in_onnxruntime
from onnxfold.graph.view import GraphView
from onnxfold.machine import memory
from onnxfold.machine.python import python

_OTHER_FLOATS = FLOAT_TYPES - {TensorProto.FLOAT}


def float32_twin(model: ModelProto) -> ModelProto:
    """Return a copy in which every float16, bfloat16 and double tensor, constant and target of a Cast is float32."""
    twin = deepcopy(model)
    for message in messages(twin):
        if isinstance(message, TypeProto.Tensor) and message.elem_type in _OTHER_FLOATS:
            message.elem_type = TensorProto.FLOAT
        elif isinstance(message, TensorProto) and message.data_type in _OTHER_FLOATS:
            values = numpy_helper.to_array(message).astype(np.float32)
            message.CopyFrom(numpy_helper.from_array(values, message.name))
        elif isinstance(message, AttributeProto) and message.name in ("to", "dtype") and message.i in _OTHER_FLOATS:
            message.i = TensorProto.FLOAT
    return twin


def has_other_floats(model: ModelProto) -> bool:
    """Whether any weight or declared tensor has a float type other than float32."""
    infos = [*model.graph.input, *model.graph.output]
    types = {i.type.tensor_type.elem_type for i in infos} | {t.data_type for t in model.graph.initializer}
    return bool(types & _OTHER_FLOATS)


def fit_feeds(feeds: Mapping[str, Array], shapes: Mapping[str, Shape | None]) -> dict[str, Array]:
    """Return inputs as a network takes them: as many, and empty ones, as of caches with fewer heads, of its sizes."""
    fitted = {name: values for name, values in feeds.items() if name in shapes or np.size(values)}
    empty = [values for values in feeds.values() if not np.size(values)]
    for name, wanted in shapes.items():
        like = next((values for values in empty if values.ndim == len(wanted or ())), None)
        if (values := fitted.get(name, like)) is not None:
            fitted[name] = values
            if not values.size and values.ndim == len(wanted or ()):
                shape = [have if want is None else want for have, want in zip(values.shape, wanted or (), strict=True)]
                fitted[name] = np.zeros(shape, values.dtype) if 0 in shape else values
    return fitted


Feeds = Mapping[str, Array]

#: Readers of a tensor from which on onnxruntime's optimiser takes longer than what it saves.
_MANY_READERS = 1000
#: Activations of more bytes go back to the system after every run, which then takes a quarter longer: onnxruntime holds
#: up to eight times as much for the next one, and two networks are compared.
_LARGE_BYTES = 64 << 20


@dataclass(frozen=True)
class InputInfo:
    """A model input: dtype, and shape with None for free dimensions."""

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int | None, ...]


class Session:
    """A model loaded in onnxruntime on the CPU.

    A model in a float type without CPU kernels (bfloat16, much of float16) runs as its float32 twin; `is_twin` says so.
    """

    def __init__(
        self, model: str | Path | ModelProto | GraphView, *, threads: int = 0, counted: GraphView | None = None,
        keeps_memory: bool = False,
    ) -> None:  # fmt: skip
        if isinstance(model, GraphView):
            counted, model = model, to_model(model)
        if not isinstance(model, ModelProto):
            require_regular_file(Path(model))
        counted = counted if counted is not None else _view(model)
        options = session_options(_optimization(counted), threads)
        self._counted = counted
        self._asked: list[dict[str, tuple[int, ...]]] = []  # shapes of inputs that memory was asked for
        self._large: list[dict[str, tuple[int, ...]]] = []  # of them, those of runs that give back what they took
        self._keeps_memory = keeps_memory
        self._loop = None if counted is None else open_loop(counted)
        self.may_be_endless = self._loop is not None  # has a Loop that may never end, so that runs are watched
        self.require({})  # onnxruntime computes constants while it loads
        try:
            self._session, self.is_twin = _open(model, options)
        except Exception as error:  # onnxruntime's exception classes are not public
            raise VerificationError(f"onnxruntime does not load the model: {one_line(error)}") from None
        #: The outputs that a run returns; some of them may be left out.
        self.output_names = [o.name for o in self._session.get_outputs()]
        self._shapes = {
            i.name: tuple(d if isinstance(d, int) and d > 0 else None for d in i.shape)
            for i in self._session.get_inputs()
        }

    @property
    def inputs(self) -> list[InputInfo]:
        """The inputs in order."""
        infos = []
        for info in self._session.get_inputs():
            kind = type_in_onnxruntime(info.type)
            dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind)) if kind else np.dtype(object)
            if dtype.kind not in "biuf" or bits_per_element(dtype) < 8:
                raise VerificationError(f"input '{info.name}' has the type {info.type}, which onnxfold cannot feed")
            infos.append(InputInfo(info.name, dtype, self._shapes[info.name]))
        return infos

    def require(self, feeds: Feeds) -> None:
        """Ask for the memory of a run, so that runs on less need not ask."""
        shapes = feed_shapes(feeds)
        if self._counted is None or any(_is_no_larger(shapes, asked) for asked in self._asked):
            return
        footprint = Footprint.of(self._counted, shapes)
        footprint.require("running the model" if feeds else "loading the model")
        if footprint.peak > _LARGE_BYTES and not self._keeps_memory:
            self._large.append(shapes)
        if feeds and footprint.unknown:
            require_trial_run(self._counted, [feeds], "running the model")
        self._asked.append(shapes)

    def run(self, feeds: Feeds) -> list[Array]:
        """Return the outputs for one set of inputs."""
        feeds = fit_feeds(feeds, self._shapes)
        self.require(feeds)
        try:
            is_large = bool(self._large) and feed_shapes(feeds) in self._large  # steps of one token are not
            with limit_run(self._loop, gives_back=is_large) as options:
                return list(self._session.run(self.output_names, feeds, options))
        except VerificationError:
            raise
        except Exception as error:
            raise VerificationError(f"onnxruntime fails while running the model: {one_line(error)}") from None

    def run_in_batches(self, feeds: Feeds, batch: int = 32) -> list[Array]:
        """Return all outputs for many samples, fed in batches along axis 0.

        A model with a fixed batch dimension gets batches of that size; its samples must be a multiple of it.
        """
        fixed = fixed_batch(info.shape for info in self.inputs)
        return self.run_all(in_batches(feeds, fixed or batch))

    def run_all(self, batches: Iterable[Feeds]) -> list[Array]:
        """Return all outputs for batches of inputs, joined along axis 0."""
        return joined_outputs([self.run(batch) for batch in batches])


def joined_outputs(parts: Iterable[Sequence[Array]]) -> list[Array]:
    """Return the outputs of several batches, joined along axis 0."""
    return [np.concatenate(column) if column[0].ndim else np.stack(column) for column in zip(*parts, strict=True)]


def _is_no_larger(shapes: Mapping[str, tuple[int, ...]], others: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether no input is larger in any dimension."""
    return shapes.keys() == others.keys() and all(
        len(shape) == len(others[name]) and all(a <= b for a, b in zip(shape, others[name], strict=True))
        for name, shape in shapes.items()
    )


def _optimization(view: GraphView | None) -> ort.GraphOptimizationLevel:
    """Return the level of onnxruntime's changes: that of users; for integers one whose rounding hangs on no width."""
    # Where it removes readers of a tensor one after the other, all of the rest are moved each time.
    read_often = view is not None and any(len(view.consumers(o)) > _MANY_READERS for n in view.nodes for o in n.output)
    level = ort.GraphOptimizationLevel
    if read_often:
        return level.ORT_DISABLE_ALL
    is_for_integers = view is not None and any(map(is_quantized, view.nodes))
    return level.ORT_ENABLE_EXTENDED if is_for_integers else level.ORT_ENABLE_ALL


def _view(model: str | Path | ModelProto) -> GraphView | None:
    try:
        return load(model)
    except MemoryLimitError:
        raise
    except OnnxFoldError:  # what cannot be folded may still run; if not, onnxruntime says so
        return None


def _open(model: str | Path | ModelProto, options: ort.SessionOptions) -> tuple[ort.InferenceSession, bool]:
    """Return a session, and whether it is one of the model's float32 twin."""
    source = model.SerializeToString() if isinstance(model, ModelProto) else str(model)
    try:
        return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"]), False
    except Exception:
        proto = model
        with suppress(Exception):  # unreadable: the first error tells
            proto = model if isinstance(model, ModelProto) else onnx.load(str(model))
        if not isinstance(proto, ModelProto) or not has_other_floats(proto):
            raise
        return _open(float32_twin(proto), options)[0], True


def fixed_batch(shapes: Iterable[Shape | None]) -> int | None:
    """Return the size of batch that a model with inputs of these shapes is fixed to; None where it takes any."""
    return next((shape[0] for shape in shapes if shape and shape[0] is not None), None)


def batch_of(view: GraphView) -> int | None:
    """Return the size of batch that the inputs of a graph are fixed to; None where it takes any."""
    return fixed_batch(map(view.shape, view.input_names))


def sample_count(feeds: Feeds) -> int:
    """Return the number of samples along axis 0 of arrays; scalars belong to all, and alone are one sample."""
    return max((len(values) for values in feeds.values() if values.ndim), default=1)


def count_samples(batches: Iterable[Feeds]) -> int:
    """Return the number of samples of all batches."""
    return sum(map(sample_count, batches))


def in_batches(feeds: Feeds, size: int) -> Iterator[dict[str, Array]]:
    """Cut arrays along axis 0; scalars stand in every batch."""
    for start in range(0, sample_count(feeds), size):
        yield {name: values[start : start + size] if values.ndim else values for name, values in feeds.items()}


def joined_feeds(batches: Sequence[Feeds], lengths: Sequence[int], names: Collection[str] = ()) -> dict[str, Array]:
    """Return the samples of batches of some lengths; an input without a batch axis, but `names`, is the first's."""
    whole = {}
    for name, first in batches[0].items():
        sampled = name in names or all(
            b[name].ndim and len(b[name]) == n for b, n in zip(batches, lengths, strict=True)
        )
        whole[name] = np.concatenate([b[name] for b in batches]) if sampled else first
    return whole


def one_line(error: Exception) -> str:
    """Return the message of an onnxruntime error in one line."""
    text = " ".join(str(error).split())
    return text if len(text) < 400 else text[:400] + " ..."


# The process of a trial run imports nothing of this package, so that it starts in a fraction of a second. Its limit
# counts what it allocates (RLIMIT_DATA): address space, of which onnxruntime reserves much more than it uses, would be
# the wrong thing to count.
_OUT_OF_MEMORY = 77
_CHILD = """
import ctypes, os, resource, sys
parent, most, model, *inputs = sys.argv[1:]
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: it ends with its parent
os.getppid() == int(parent) or sys.exit(1)  # it ended before this was asked for
import numpy, onnxruntime
with open("/proc/self/statm") as file:
    held = int(file.read().split()[5]) * resource.getpagesize()
hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
limit = held + int(most)
resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))
try:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    for path in inputs:
        with numpy.load(path) as feeds:
            session.run(None, dict(feeds))
except MemoryError:
    sys.exit(77)
except Exception as error:
    words = ("allocate", "bad_alloc", "memory")
    sys.exit(77 if any(word in str(error).lower() for word in words) else 1)
"""


def require_trial_run(view: GraphView, batches: Sequence[Mapping[str, Array]], what: str) -> None:
    """Run a model once in a separate process with limited memory."""
    loop = open_loop(view)
    most = memory.limit()
    with tempfile.TemporaryDirectory(prefix="onnxfold-") as folder:
        path = Path(folder) / "model.onnx"
        save(view, path)
        inputs = []
        for i, batch in enumerate(batches):
            inputs.append(Path(folder) / f"{i}.npz")
            np.savez(inputs[-1], **{name: np.asarray(values) for name, values in batch.items()})  # type: ignore[arg-type]
        command = python("-c", _CHILD, str(os.getpid()), str(most), str(path), *map(str, inputs))
        seconds = None if loop is None else loops.MOST_SECONDS * len(batches)
        try:
            code = subprocess.run(command, capture_output=True, check=False, timeout=seconds).returncode
        except subprocess.TimeoutExpired:
            assert loop is not None
            raise loops.too_long(loop) from None
    # onnxruntime ends by a signal where an allocation fails that it does not expect to fail.
    if code == _OUT_OF_MEMORY or code < 0:
        raise MemoryLimitError(f"{what} needs more memory than the limit of {show_bytes(most)}: {memory.SMALLER}")
