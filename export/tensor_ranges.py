"""Ranges of the tensors of a float32 file on inputs, as far as int8 needs them."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from onnxfold.export.tflite.graph import Graph
from onnxfold.export.tflite.serialize import SIGNATURE
from onnxfold.graph.tensors import Array
from onnxfold.statistics.activations import Batches

#: What operators tell apart of their input; int8 results of the first two do not change beyond it.
_TOLD_APART = {
    "LOGISTIC": (-8.0, 8.0), "TANH": (-4.0, 4.0), "RELU": (0.0, np.inf), "RELU6": (0.0, 6.0),
    "RELU_N1_TO_1": (-1.0, 1.0), "RELU_0_TO_1": (0.0, 1.0), "HARD_SWISH": (-3.0, np.inf),
}  # fmt: skip
#: Results that runtimes have one range for.
_FIXED = {"LOGISTIC": (0.0, 255 / 256), "SOFTMAX": (0.0, 255 / 256), "TANH": (-1.0, 127 / 128)}
#: Operators that only move values: their results have the range of their input, but where several are joined.
_JOINS = frozenset({"CONCATENATION", "PACK"})
_MOVES = _JOINS | {
    "RESHAPE", "TRANSPOSE", "SPLIT", "SPLIT_V", "STRIDED_SLICE", "SLICE", "GATHER", "UNPACK", "SQUEEZE", "EXPAND_DIMS",
    "MAX_POOL_2D",
}  # fmt: skip
_ALL = (-np.inf, np.inf)
#: Part of the values of a tensor that a narrow range leaves out, at either end: what few entries alone reach.
_FAR = 1e-4
#: Values of a tensor that are drawn from all batches for that.
_DRAWN = 1 << 17
#: Numbers of this size stand for minus infinity where maxima are padded.
_LOWEST = 3e38
#: Smallest and largest value of a tensor; of tensors by the ids of their values.
Sides = tuple[Array, Array]
Ranges = dict[int, Sides]


def observed_ranges(path: Path, batches: Batches) -> tuple[dict[str, Sides], dict[str, Sides]]:
    """Return the range of every float tensor of a file, and one that leaves out the farthest of its values.

    The quantiser's own calibration averages ranges over batches, which cuts off what only some samples reach, and fails
    where the delegate that it runs in leaves out a tensor that nobody reads.
    """
    whole: dict[str, Sides] = {}
    drawn: dict[str, list[Array]] = {}
    generator, count = np.random.default_rng(0), max(_DRAWN // len(batches), 1)
    for name, values in _activations(path, batches):
        low, high = whole.get(name, (np.inf, -np.inf))
        whole[name] = values.min(initial=float(low)), values.max(initial=float(high))
        few = values if values.size <= count else values[generator.integers(0, values.size, count)]
        drawn.setdefault(name, []).append(few)
    near = dict(whole)
    for name, parts in drawn.items():
        if any(part.size for part in parts):
            low, high = np.quantile(np.concatenate(parts), (_FAR, 1.0 - _FAR)).astype(np.float32)
            near[name] = low, high
    return whole, near


def relevant_ranges(graph: Graph, ranges: Ranges) -> Ranges:
    """Return the range that every tensor gets: as far as its readers tell values apart, or as runtimes fix it.

    A gate that is open at 8 is as open at 200; steps for numbers between them are taken from the others.
    """
    limits: dict[int, tuple[float, float]] = {id(v): _ALL for v in graph.outputs}
    for op in reversed(graph.operators):
        wanted = [_TOLD_APART.get(op.code, _ALL)]
        if op.code in _MOVES:
            wanted = [limits.get(id(v), (np.inf, -np.inf)) for v in op.outputs]
        for value in op.inputs:
            if value is not None:
                sides = [limits.get(id(value), (np.inf, -np.inf)), *wanted]
                limits[id(value)] = min(low for low, _ in sides), max(high for _, high in sides)
    fixed: dict[int, tuple[float, float]] = {}
    for op in graph.operators:
        known = _FIXED.get(op.code)
        if op.code in _MOVES - _JOINS:
            known = next((fixed[id(v)] for v in op.inputs if id(v) in fixed), None)
        if known is not None:
            fixed.update({id(v): known for v in op.outputs})
    narrowed: Ranges = {}
    for key, (least, largest) in ranges.items():
        low, high = limits.get(key, _ALL)
        if least > largest:  # infinite everywhere
            least = largest = np.zeros(())
        if key in fixed:
            least, largest = (np.asarray(side, np.float32) for side in fixed[key])
        narrowed[key] = np.clip(least, low, high), np.clip(largest, low, high)
    return narrowed


def _activations(path: Path, batches: Batches) -> Iterator[tuple[str, Array]]:
    """Return the values of every float tensor that a file computes or is given, batch by batch."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter = Interpreter(
        model_path=str(path), num_threads=1, experimental_preserve_all_tensors=True,
        experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )  # fmt: skip
    signature = interpreter._get_full_signature_list()[SIGNATURE]  # a runner would hide what is inside
    for feeds in batches:
        for name, index in signature["inputs"].items():
            interpreter.resize_tensor_input(index, feeds[name].shape)
        interpreter.allocate_tensors()
        for name, index in signature["inputs"].items():
            interpreter.set_tensor(index, feeds[name])
        interpreter.invoke()
        operators = interpreter._get_ops_details()
        computed = {*signature["inputs"].values(), *(int(i) for operator in operators for i in operator["outputs"])}
        for detail in interpreter.get_tensor_details():
            if detail["index"] in computed and detail["dtype"] is np.float32 and all(detail["shape"]):
                values = interpreter.get_tensor(detail["index"]).reshape(-1)
                usual = values.min() > -_LOWEST and values.max() < _LOWEST
                yield detail["name"], values if usual else values[np.abs(values) < _LOWEST]
