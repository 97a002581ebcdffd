"""Quantisation to int8 by ai-edge-quantizer: weights per channel, activations by their ranges on inputs."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from onnxfold.errors import ExportError
from onnxfold.export.parity import to_layout
from onnxfold.export.tflite.convert import Converted
from onnxfold.export.tflite.graph import Graph
from onnxfold.export.tflite.serialize import SIGNATURE, inline_buffers, tensor_names
from onnxfold.graph.tensors import Array
from onnxfold.quantize.qdq import quiet
from onnxfold.statistics.activations import Batches

#: What operators tell apart of their input; int8 results of the first two do not change beyond it.
_TOLD_APART = {
    "LOGISTIC": (-8.0, 8.0), "TANH": (-4.0, 4.0), "RELU": (0.0, np.inf), "RELU6": (0.0, 6.0),
    "RELU_N1_TO_1": (-1.0, 1.0), "RELU_0_TO_1": (0.0, 1.0), "HARD_SWISH": (-3.0, np.inf),
}  # fmt: skip
#: Operators that only move values.
_MOVES = frozenset({
    "RESHAPE", "TRANSPOSE", "SPLIT", "SPLIT_V", "STRIDED_SLICE", "SLICE", "CONCATENATION", "GATHER", "PACK", "UNPACK",
    "SQUEEZE", "EXPAND_DIMS", "MAX_POOL_2D",
})  # fmt: skip
_ALL = (-np.inf, np.inf)
#: Parts of a network: where int8 makes too much noise, some of so many stay in float32.
_FEW, _MANY = 8, 48
#: Part of the values of a tensor that a narrow range leaves out, at either end: what few entries alone reach.
_FAR = 1e-4
#: Values of a tensor that are drawn from all batches for that.
_DRAWN = 1 << 17
#: Numbers of this size stand for minus infinity where maxima are padded.
_LOWEST = 3e38
#: Smallest and largest value of a tensor; of tensors by the ids of their values.
Sides = tuple[Array, Array]
Ranges = dict[int, Sides]


@dataclass(frozen=True)
class Int8File:
    """The result of a quantisation: the operators left in float32, and the noise with none left."""

    in_float: int = 0  # operators that stay in float32
    snr_db: float = math.inf  # signal-to-noise ratio of the outputs without them


@dataclass(frozen=True)
class _Try:
    """A file in int8 that was measured."""

    snr_db: float
    ranges: Ranges
    in_float: tuple[str, ...]  # operators, as the quantiser names them


class _Search:
    """Files in int8 in turn, until the outputs of one have little noise."""

    def __init__(self, path: Path, names: Mapping[int, str], measure: Callable[[], float], least: float) -> None:
        self._path, self.exact, self._names = path, path.read_bytes(), names
        self._measure, self._least = measure, least
        self.tries: list[_Try] = []

    def measure(self, ranges: Ranges, in_float: Sequence[str] = ()) -> float:
        """Write a file with some operators in float32; return its signal-to-noise ratio."""
        of_tensors = {self._names[key]: {"min": low, "max": high} for key, (low, high) in ranges.items()}
        self._path.write_bytes(self.exact)
        self._path.write_bytes(_quantise_file(self._path, of_tensors, in_float))
        return self._measure()

    def suffices(self, ranges: Ranges, in_float: Sequence[str] = ()) -> bool:
        """Measure a file that may be the result; return whether it has little noise."""
        self.tries.append(_Try(self.measure(ranges, in_float), ranges, tuple(in_float)))
        return self.tries[-1].snr_db >= self._least

    def leave_in_float(self, ranges: Ranges, scopes: Sequence[str]) -> None:
        """Try files with some operators in float32: a part of the network, the noisiest small parts, several parts."""
        known = len(self.tries)
        if any(self.suffices(ranges, part) for part in _parts(scopes, _FEW)):
            return
        helpful = sorted(self.tries[known:], key=lambda attempt: -attempt.snr_db)
        if self._leave_noisiest(ranges, scopes):
            return
        unions = ([s for attempt in helpful[:count] for s in attempt.in_float] for count in range(2, _FEW // 2 + 1))
        longer = (part for count in (4, 2) for part in _parts(scopes, count))
        for kept in chain(unions, longer):
            if self.suffices(ranges, kept):
                return

    def _leave_noisiest(self, ranges: Ranges, scopes: Sequence[str]) -> bool:
        """Try to leave the fewest of the noisiest small parts in float32, half of them at most.

        Noise of parts that alone are in int8 nearly adds up, whereas a part that alone is in float32 hardly shows where
        several others make as much noise.
        """
        parts = _parts(scopes, _MANY)
        alone = [self.measure(ranges, [s for s in scopes if s not in part]) for part in parts]
        order = sorted(range(len(parts)), key=lambda i: alone[i])

        def keeps(count: int) -> bool:
            return self.suffices(ranges, [scope for i in sorted(order[:count]) for scope in parts[i]])

        too_few, enough = 0, len(parts) // 2
        if not enough or not keeps(enough):
            return False
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            too_few, enough = (too_few, middle) if keeps(middle) else (middle, enough)
        return True

    def write_best(self) -> _Try:
        """Write the file with the fewest operators in float32 of those with little noise, else that with the least."""
        quiet_ones = [attempt for attempt in self.tries if attempt.snr_db >= self._least]
        least_noisy = max(self.tries, key=lambda attempt: attempt.snr_db)
        best = min(quiet_ones, key=lambda attempt: len(attempt.in_float), default=least_noisy)
        if best is not self.tries[-1]:
            self.measure(best.ranges, best.in_float)
        return best


def _parts(scopes: Sequence[str], count: int) -> list[Sequence[str]]:
    """Return the operators in parts of one size, so many at most."""
    size = -(-len(scopes) // count)
    return [scopes[i : i + size] for i in range(0, len(scopes), size)]


def quantize_int8(
    converted: Converted, path: Path, batches: Batches, measure: Callable[[], float], least: float
) -> Int8File:
    """Quantise a float32 file in place, its inputs and outputs included, as microcontrollers expect it.

    Ranges hold all values. Where the outputs have too much noise, ranges without the farthest values are tried, and
    where noise still is too much, some operators stay in float32: half of them at most.
    """
    graph, names = converted.graph, tensor_names(converted.graph)
    feeds = [{p.name: to_layout(batch[p.name], p.layout) for p in converted.inputs} for batch in batches]
    observed = activation_ranges(path, feeds)
    ranges = relevant_ranges(graph, {key: observed[name] for key, name in names.items() if name in observed})
    search = _Search(path, names, measure, least)
    if not search.suffices(ranges):
        path.write_bytes(search.exact)
        near = near_ranges(path, feeds)
        narrow = {key: _within(sides, near.get(names[key], sides)) for key, sides in ranges.items()}
        if not search.suffices(narrow):
            scopes = ["".join(f"{names[id(v)]};" for v in op.outputs) for op in graph.operators]
            search.leave_in_float(max(search.tries, key=lambda attempt: attempt.snr_db).ranges, scopes)
    best = search.write_best()
    whole = max(attempt.snr_db for attempt in search.tries if not attempt.in_float)
    return Int8File(len(best.in_float), whole)


def _quantise_file(path: Path, ranges: Mapping[str, Mapping[str, Array]], in_float: Sequence[str]) -> bytes:
    """Return the content of a file in int8, but for some operators."""
    try:
        from ai_edge_quantizer import quantizer, recipe
    except ImportError:
        raise ExportError(
            "int8 needs ai-edge-quantizer, which is not installed: pip install ai-edge-quantizer"
        ) from None
    rules = recipe.static_wi8_ai8()
    exceptions = [{**rules[0], "regex": f"^{re.escape(s)}$", "algorithm_key": "no_quantize"} for s in in_float]
    ports = [{**rules[0], "operation": side} for side in ("INPUT", "OUTPUT")]
    try:
        with quiet("ai_edge_quantizer"):  # it draws progress bars and warns of its own settings
            done = quantizer.Quantizer(str(path), [*rules, *exceptions, *(ports if exceptions else ())]).quantize(
                ranges, enable_progress_bar=False, enable_progress_report=False
            )
    except (RuntimeError, ValueError, KeyError, NotImplementedError) as error:
        raise ExportError(f"ai-edge-quantizer refuses: {' '.join(str(error).split())[:300]}") from None
    return bytes(inline_buffers(bytes(done.quantized_model)))


def relevant_ranges(graph: Graph, ranges: Ranges) -> Ranges:
    """Return the range of every tensor, as far as its readers tell values apart.

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
    narrowed: Ranges = {}
    for key, (least, largest) in ranges.items():
        low, high = limits.get(key, _ALL)
        if least > largest:  # infinite everywhere
            least = largest = np.zeros(())
        narrowed[key] = np.clip(least, low, high), np.clip(largest, low, high)
    return narrowed


def activation_ranges(path: Path, batches: Batches) -> dict[str, Sides]:
    """Return the smallest and the largest value of every float tensor that a file computes or is given.

    The quantiser's own calibration averages ranges over batches, which cuts off what only some samples reach, and fails
    where the delegate that it runs in leaves out a tensor that nobody reads.
    """
    ranges: dict[str, Sides] = {}
    for name, values in _activations(path, batches):
        low, high = ranges.get(name, (np.inf, -np.inf))
        ranges[name] = values.min(initial=float(low)), values.max(initial=float(high))
    return ranges


def near_ranges(path: Path, batches: Batches) -> dict[str, Sides]:
    """Return a range of every float tensor that leaves out the farthest of its values, drawn from all batches."""
    drawn: dict[str, list[Array]] = {}
    generator, count = np.random.default_rng(0), max(_DRAWN // len(batches), 1)
    for name, values in _activations(path, batches):
        few = values if values.size <= count else values[generator.integers(0, values.size, count)]
        drawn.setdefault(name, []).append(few)
    ranges: dict[str, Sides] = {}
    for name, parts in drawn.items():
        whole = np.concatenate(parts)
        if whole.size:
            low, high = np.quantile(whole, (_FAR, 1.0 - _FAR)).astype(np.float32)
            ranges[name] = low, high
    return ranges


def _within(sides: Sides, near: Sides) -> Sides:
    """Return a range cut to another one, which leaves out the farthest values."""
    low, high = sides
    return np.clip(near[0], low, high), np.clip(near[1], low, high)


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
                values = interpreter.get_tensor(detail["index"])
                yield detail["name"], values[np.abs(values) < _LOWEST]
