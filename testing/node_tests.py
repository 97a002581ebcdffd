"""ONNX's own backend tests of one node, run through the TFLite writer."""

import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from onnx import helper, numpy_helper
from onnx.reference.ops import op_pool_common

from onnxfold.errors import ExportError, OnnxFoldError
from onnxfold.export.api import open_model
from onnxfold.export.fusion import PREPARE
from onnxfold.export.parity import TFLiteInterpreter, from_layout, to_layouts
from onnxfold.export.tflite.context import how_written
from onnxfold.export.tflite.convert import convert
from onnxfold.export.tflite.graph import ELEMENT_TYPES
from onnxfold.graph.files.load import MIN_OPSET
from onnxfold.graph.tensors import FLOAT_TYPES

#: Operators all of whose inputs are activations.
_ALL_DATA = frozenset({
    "Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "Pow", "Mod", "And", "Or", "Xor", "Equal", "Greater",
    "GreaterOrEqual", "Less", "LessOrEqual", "Where", "Concat", "MatMul",
})  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What became of a test: why it was refused, by how much it differs, or which type of it TFLite does not have."""

    operator: str
    test: str
    refused: str = ""
    differs: str = ""
    outside: str = ""

    @property
    def passed(self) -> bool:
        """Whether the outputs are those expected."""
        return not (self.refused or self.differs or self.outside)


def operators() -> list[str]:
    """Return the ONNX operators that the writer claims."""
    return sorted(how_written())


@cache
def cases() -> dict[str, list[Any]]:
    """Return ONNX's single-node tests by operator."""
    from onnx.backend.test.case.node import collect_testcases

    found = defaultdict(list)
    quick = patch.object(op_pool_common, "pool", partial(_pool, op_pool_common.pool))
    with quick, warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for case in collect_testcases(None):
            if case.model is not None and len(case.model.graph.node) == 1 and case.data_sets:
                found[case.model.graph.node[0].op_type].append(case)
    return found


def _pool(
    slow: Callable[..., Any], padded: Any, shape: Any, kernel: Any, strides: Any, out: Any, kind: str, *rest: Any,
    p: int = 1, **more: Any,
) -> Any:  # fmt: skip
    """Pool all windows at once where they are whole: ONNX's reference takes one by one, 15 s for three cubes."""
    if rest or more or np.isnan(padded).any():
        return slow(padded, shape, kernel, strides, out, kind, *rest, p=p, **more)
    axes = tuple(range(2, padded.ndim))
    windows = sliding_window_view(padded, tuple(kernel), axes)
    windows = windows[(slice(None), slice(None), *(slice(None, None, step) for step in strides))]
    inside = tuple(range(padded.ndim, windows.ndim))
    if kind == "LPPOOL":
        return (np.abs(windows) ** p).sum(inside) ** (1.0 / p)
    return windows.mean(inside) if kind == "AVG" else windows.max(inside)


def run(names: Iterable[str]) -> Iterator[Outcome]:
    """Run all tests of some operators."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "node.tflite"
        for name in names:
            for case in cases().get(name, []):
                yield run_case(name, case, path)


def run_case(operator: str, case: Any, path: Path) -> Outcome:
    """Convert and run one test."""
    test = case.name.removeprefix("test_")
    inputs, expected = case.data_sets[0]
    if not all(isinstance(v, (np.ndarray, np.generic, onnx.TensorProto)) for v in (*inputs, *expected)):
        return Outcome(operator, test, outside="sequences and optionals")
    inputs, expected = ([_array(v) for v in side] for side in (inputs, expected))
    types = {helper.np_dtype_to_tensor_dtype(v.dtype) for v in (*inputs, *expected)}
    unknown = types - set(ELEMENT_TYPES) - FLOAT_TYPES
    if unknown:
        names = sorted(onnx.TensorProto.DataType.Name(t) for t in unknown)
        return Outcome(operator, test, outside=f"element type {', '.join(names)}")
    model, feeds = _with_weights(case.model, inputs)
    try:
        view = open_model(model)
        PREPARE(view)
        converted = convert(view)
        path.write_bytes(converted.to_bytes(test))
        interpreter = TFLiteInterpreter(path)
    except ExportError as error:
        return Outcome(operator, test, refused=error.reason)
    except OnnxFoldError as error:
        return Outcome(operator, test, refused=str(error))
    for name, values in feeds.items():
        if values.dtype.kind == "f" or values.dtype == "bfloat16":
            feeds[name] = values.astype(np.float32)
    got = interpreter.run(to_layouts(feeds, converted.ports))
    for (name, layout), want in zip(converted.ports.outputs.items(), expected, strict=True):
        values = from_layout(np.asarray(got[name]), layout)
        problem = _difference(values, want, case.rtol)
        if problem:
            return Outcome(operator, test, differs=problem)
    return Outcome(operator, test)


def _difference(values: Any, want: Any, rtol: float) -> str:
    if values.shape != want.shape:
        return f"shape {values.shape} instead of {want.shape}"
    a, b = values.astype(np.float64), want.astype(np.float64)
    # What ONNX has in narrow floats the file has in float32.
    narrow = float(ml_dtypes.finfo(want.dtype).eps) if want.dtype.itemsize == 2 and want.dtype.kind in "fV" else 0.0
    close = np.isclose(a, b, rtol=max(rtol, narrow), atol=1e-5, equal_nan=True)
    return "" if close.all() else f"largest difference {np.abs(a - b)[~close].max():.3g}"


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def _with_weights(model: onnx.ModelProto, inputs: list[Any]) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Return the model with its parameters as initializers, and what is left to feed."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    if max(o.version for o in copy.opset_import) < MIN_OPSET:
        copy = onnx.version_converter.convert_version(copy, 17)
    node, graph = copy.graph.node[0], copy.graph
    named = dict(zip([i.name for i in graph.input], inputs, strict=True))
    data = set(node.input) if node.op_type in _ALL_DATA else {node.input[0]}
    for name in [n for n in named if n not in data]:
        graph.initializer.append(numpy_helper.from_array(np.asarray(named[name]), name))
        graph.input.remove(next(i for i in graph.input if i.name == name))
    return copy, {n: named[n] for n in named if n in data}
