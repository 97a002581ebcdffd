"""Quantisation to int8 by ai-edge-quantizer: weights per channel, activations by their ranges on inputs.

Where int8 makes too much noise in the outputs, the noise that every tensor makes alone is measured on samples that the
ranges are not taken from. These noises nearly add up, so that the worst tensors are known, and what stays in float32.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from onnxfold.errors import ExportError
from onnxfold.export.parity import DESTROYED, Outputs, noise_to_signal, to_layouts
from onnxfold.export.tflite.convert import Converted
from onnxfold.export.tflite.graph import Graph, Operator, Value
from onnxfold.export.tflite.serialize import SIGNATURE, inline_buffers, serialize, tensor_names
from onnxfold.graph.run.session import one_line
from onnxfold.graph.tensors import Array
from onnxfold.quantize.quantize import quiet
from onnxfold.statistics.activations import Batches

#: Part of the multiply-accumulates that int8 does at least.
LEAST_INT8 = 0.5
#: Files with operators in float32 that are tried at most.
_TRIES = 6
#: Part of the noise that is allowed, which tensors that are not told apart make at most.
_LITTLE = 1 / 8
#: What all operators cost in float32, beside their multiply-accumulates, which cost 1.
_EACH = 0.2
#: Part of its noise that a tensor makes at most with a narrow range, which inputs that nobody has seen may leave.
_CLEARLY = 1 / 4
#: Of so many batches, tensors are measured on one.
_FEW = 8
#: Smallest and largest value of a tensor.
Sides = tuple[Array, Array]
Ranges = dict[Value, Sides]
#: Tensors in the order of execution.
Group = tuple[Value, ...]
#: Axis of the channels that weights have scales for.
_CHANNELS = {"CONV_2D": 0, "DEPTHWISE_CONV_2D": -1, "TRANSPOSE_CONV": 0, "FULLY_CONNECTED": 0}
#: Multiply-accumulates of operators: elements of a tensor, times lengths of another one.
_MACS = {
    "CONV_2D": lambda op: prod(op.outputs[0].shape) * prod(op.inputs[1].shape[1:]),
    "CONV_3D": lambda op: prod(op.outputs[0].shape) * prod(op.inputs[1].shape[:4]),
    "DEPTHWISE_CONV_2D": lambda op: prod(op.outputs[0].shape) * prod(op.inputs[1].shape[:3]),
    "TRANSPOSE_CONV": lambda op: prod(op.inputs[2].shape) * prod(op.inputs[1].shape[:3]),
    "FULLY_CONNECTED": lambda op: prod(op.outputs[0].shape) * op.inputs[1].shape[-1],
    "BATCH_MATMUL": lambda op: prod(op.inputs[0].shape) * prod(op.outputs[0].shape[-1:]),
}


@dataclass(frozen=True)
class HeldOut:
    """Samples that no range is taken from, and the outputs of the ONNX model on them."""

    batches: Batches
    expected: Outputs

    def loudest(self, count: int) -> "HeldOut":
        """Return the batches that hold most of the energy of an output, on which noise depends most."""
        energies = np.array([[np.square(v[np.isfinite(v)]).sum() for v in out.values()] for out in self.expected])
        shares = (energies / np.maximum(energies.sum(0), np.finfo(np.float32).tiny)).max(1, initial=0.0)
        order = np.argsort(-shares, kind="stable")[:count]
        return HeldOut([self.batches[i] for i in order], [self.expected[i] for i in order])


@dataclass(frozen=True)
class _Try:
    """A file in int8 that was measured."""

    noise: float
    ranges: Ranges
    in_float: frozenset[Value]


def quantize_int8(converted: Converted, path: Path, batches: Batches, held: HeldOut, least: float) -> list[str]:
    """Quantise a float32 file in place, its inputs and outputs included, as microcontrollers expect it.

    Ranges hold all values of the batches. Where held-out outputs have too much noise, tensors that make most of it get
    ranges without the farthest values if that helps, and if noise still is too much, what is beside them stays in
    float32: half of the multiply-accumulates at most. Returns a note where some does.
    """
    whole, near = ranges_of(converted, path, batches)
    search = _Search(converted, path, held, 10 ** (-least / 10))
    if not search.suffices(whole):
        noise, narrow = search.measure_groups(whole, near)
        ranges = {**whole, **narrow}
        if not (narrow and search.suffices(ranges)):
            search.leave_in_float(ranges, noise)
    best = search.write_best()
    beside = search.beside(best.in_float)
    if not beside:
        return []
    all_int8 = min(attempt.noise for attempt in search.tries if not attempt.in_float)
    ratio = f"the signal-to-noise ratio is {-10 * float(np.log10(max(all_int8, 1e-30))):.1f} dB"
    lost = ratio if all_int8 < DESTROYED else "it gives no numbers"
    return [
        f"{len(beside)} of {len(converted.graph.operators)} operators stay in float32, and int8 does "
        f"{search.int8_macs(beside):.0%} of the multiply-accumulates: with all of them in int8, {lost}"
    ]


def ranges_of(converted: Converted, path: Path, batches: Batches) -> tuple[Ranges, Ranges]:
    """Return ranges of the tensors of a float32 file that hold all values, and some without the farthest."""
    names = tensor_names(converted.graph)
    feeds = [to_layouts(batch, converted.ports) for batch in batches]
    kept = ({k: sides[n] for k, n in names.items() if n in sides} for sides in observed_ranges(path, feeds))
    whole, near = (relevant_ranges(converted.graph, sides) for sides in kept)
    return whole, near


class _Search:
    """Files in int8 in turn, until the outputs of one have little noise."""

    def __init__(self, converted: Converted, path: Path, held: HeldOut, most: float) -> None:
        self._graph, self._ports = converted.graph, converted.ports
        self._path, self._exact, self._held, self._most = path, path.read_bytes(), held, most
        self._few = held.loudest(max(len(held.batches) // _FEW, 1))
        self._names = tensor_names(converted.graph)
        self._macs = [_MACS[op.code](op) if op.code in _MACS else 0 for op in self._graph.operators]
        self.tries: list[_Try] = []

    def suffices(self, ranges: Ranges, in_float: Collection[Value] = ()) -> bool:
        """Write and measure a file that may be the result; return whether it has little noise."""
        self._write(ranges, in_float)
        self.tries.append(_Try(self._noise(self._held), ranges, frozenset(in_float)))
        return self.tries[-1].noise <= self._most

    def write_best(self) -> _Try:
        """Write the file with the least in float32 of those with little noise, else that with the least noise."""
        quiet_ones = (attempt for attempt in self.tries if attempt.noise <= self._most)
        least_noisy = min(self.tries, key=lambda attempt: attempt.noise)
        best = min(quiet_ones, key=lambda attempt: self._cost(self.beside(attempt.in_float)), default=least_noisy)
        if best is not self.tries[-1]:
            self._write(best.ranges, best.in_float)
        return best

    def measure_groups(self, whole: Ranges, near: Ranges) -> tuple[dict[Group, float], Ranges]:
        """Return the noise that groups of tensors make if they alone are in int8, and ranges with which they make less.

        Neighbours that together make little noise are not told apart.
        """
        noise: dict[Group, float] = {}
        narrow: Ranges = {}
        groups: list[Group] = [tuple(whole)]
        while groups:
            group = groups.pop()
            made = self._noise_of({key: whole[key] for key in group})
            if len(group) > 1 and made > self._most * _LITTLE:
                groups += [group[len(group) // 2 :], group[: len(group) // 2]]
                continue
            noise[group] = made
            if made > self._most * _LITTLE and any(_is_far_narrower(near[key], whole[key]) for key in group):
                less = self._noise_of({key: near[key] for key in group})
                if less < made * _CLEARLY:
                    narrow.update({key: near[key] for key in group})
                    noise[group] = less
        return noise, narrow

    def leave_in_float(self, ranges: Ranges, noise: Mapping[Group, float]) -> None:
        """Try files with the noisiest tensors in float32, and find how many must be.

        A tensor is so if all operators beside it are.
        """
        kept, left = [frozenset[Value]()], [sum(noise.values())]
        beside, in_float = {group: frozenset(self.beside(group)) for group in noise}, frozenset[int]()
        while beside:
            group = max(beside, key=lambda group: noise[group] / self._cost(beside[group] - in_float))
            more = in_float | beside.pop(group)
            if self.int8_macs(more) >= LEAST_INT8:
                in_float = more
                kept.append(kept[-1] | set(group))
                left.append(left[-1] - noise[group])
        too_few, enough, last = 0, len(kept), len(kept) - 1
        middle = next((i for i in range(1, last) if left[i] <= self._most), last)
        for _ in range(_TRIES):
            if enough - too_few == 1:
                break
            if self.suffices(ranges, kept[middle]):
                enough = middle
            else:
                too_few = middle
            middle = min(2 * too_few, last) if enough > last else (too_few + enough) // 2

    def _cost(self, operators: Collection[int]) -> float:
        """Return the cost of operators in float32: their part of the multiply-accumulates, and a little for each."""
        return 1.0 - self.int8_macs(operators) + _EACH * (1 + len(operators)) / len(self._graph.operators)

    def beside(self, tensors: Collection[Value]) -> list[int]:
        """Return the operators that compute or read tensors."""
        operators = enumerate(self._graph.operators)
        return [i for i, op in operators if not {*op.inputs, *op.outputs}.isdisjoint(tensors)]

    def int8_macs(self, in_float: Collection[int]) -> float:
        """Return the part of the multiply-accumulates that is not in some operators."""
        return 1.0 - sum(self._macs[i] for i in in_float) / (sum(self._macs) or 1)

    def _write(self, ranges: Ranges, in_float: Collection[Value]) -> None:
        """Write a file in int8, but for some tensors and the operators beside them."""
        graph = self._graph
        scopes = ["".join(f"{self._names[v]};" for v in graph.operators[i].outputs) for i in self.beside(in_float)]
        sides = {"INPUT": graph.inputs, "OUTPUT": graph.outputs}
        floats = [side for side, values in sides.items() if any(v in in_float for v in values)]
        of_tensors = {self._names[key]: {"min": low, "max": high} for key, (low, high) in ranges.items()}
        self._path.write_bytes(self._exact)
        self._path.write_bytes(_quantise_file(self._path, of_tensors, scopes, floats))

    def _noise_of(self, ranges: Ranges) -> float:
        """Return the noise of a float32 file in which some tensors are rounded to 8 bits."""
        self._path.write_bytes(serialize(_rounded(self._graph, ranges), "", {}))
        return self._noise(self._few)

    def _noise(self, held: HeldOut) -> float:
        try:
            return noise_to_signal(self._path, held.batches, held.expected, self._ports)
        except ExportError:  # kernels refuse some numbers, such as a divisor that is rounded to 0
            return DESTROYED


def _is_far_narrower(sides: Sides, others: Sides) -> bool:
    """Return whether steps of a range are so much smaller that clearly less noise is possible."""
    return bool(np.square(sides[1] - sides[0]) < _CLEARLY * np.square(others[1] - others[0]))


def _rounded(graph: Graph, ranges: Ranges) -> Graph:
    """Return a graph in which some tensors are rounded to 8 bits where they are computed."""
    result = Graph()
    rounded: dict[Value, Value] = {}

    def round_values(values: Collection[Value]) -> None:
        for value in values:
            low, high = (float(side) for side in ranges.get(value, (0.0, 0.0)))
            if low < high:
                options: dict[str, Any] = {"min": min(low, 0.0), "max": max(high, 0.0), "numBits": 8}
                rounded[value] = result.op("FAKE_QUANT", [value], value.shape, name=value.name, **options)

    result.inputs = graph.inputs
    round_values(graph.inputs)
    for op in graph.operators:
        inputs = [rounded.get(v, v) for v in op.inputs]
        if op.code in _CHANNELS and op.outputs[0] in ranges and op.inputs[1].is_constant:
            inputs[1] = _rounded_weight(op.inputs[1], _CHANNELS[op.code])
        result.operators.append(Operator(op.code, inputs, op.outputs, op.options, op.version))
        round_values(op.outputs)
    result.outputs = [rounded.get(value, value) for value in graph.outputs]
    return result


def _rounded_weight(weight: Value, axis: int) -> Value:
    """Return a weight as int8 holds it, with a scale per channel."""

    def load() -> Array:
        values = weight.values()
        others = tuple(i for i in range(values.ndim) if i != axis % values.ndim)
        scale = np.maximum(np.abs(values).max(others, keepdims=True) / 127, np.finfo(np.float32).tiny)
        rounded: Array = np.round(values / scale) * scale
        return rounded

    return Value(weight.shape, weight.element_type, weight.name, load)


def _quantise_file(
    path: Path, ranges: Mapping[str, Mapping[str, object]], in_float: Collection[str], float_sides: Collection[str]
) -> bytes:
    """Return the content of a file in int8, but for some operators."""
    try:
        from ai_edge_quantizer import quantizer, recipe
    except ImportError:
        text = "int8 needs ai-edge-quantizer, which is not installed: pip install ai-edge-quantizer"
        raise ExportError(text) from None
    rules = recipe.static_wi8_ai8()
    names = f"^(?:{'|'.join(map(re.escape, in_float))})$"  # in one rule: every operator is asked every rule
    exceptions = [{**rules[0], "regex": names, "algorithm_key": "no_quantize"}] if in_float else []
    ports = [
        {**rules[0], "operation": side, **({"algorithm_key": "no_quantize"} if side in float_sides else {})}
        for side in ("INPUT", "OUTPUT")
    ]
    try:
        with quiet("ai_edge_quantizer"):  # it draws progress bars and warns of its own settings
            done = quantizer.Quantizer(str(path), [*rules, *exceptions, *(ports if exceptions else ())]).quantize(
                ranges, enable_progress_bar=False, enable_progress_report=False
            )
    except (RuntimeError, ValueError, KeyError, NotImplementedError) as error:
        raise ExportError(f"ai-edge-quantizer refuses: {one_line(error)}") from None
    return bytes(inline_buffers(bytes(done.quantized_model)))


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
    silent = next((name for name, (low, high) in whole.items() if low > high), None)
    if silent is not None:  # of such a range the interpreter ends the process
        raise ExportError(
            f"int8 takes ranges from samples, and on these no value of '{silent}' is finite: give samples that the "
            "network is meant for, with --calibration"
        )
    near: dict[str, Sides] = {}
    for name, parts in drawn.items():
        low, high = np.quantile(np.concatenate(parts), (_FAR, 1.0 - _FAR)).astype(np.float32)
        near[name] = low, high
    return whole, near


def relevant_ranges(graph: Graph, ranges: Ranges) -> Ranges:
    """Return the range that every tensor gets: as far as its readers tell values apart, or as runtimes fix it.

    A gate that is open at 8 is as open at 200; steps for numbers between them are taken from the others.
    """
    limits = dict.fromkeys(graph.outputs, _ALL)
    for op in reversed(graph.operators):
        wanted = [_TOLD_APART.get(op.code, _ALL)]
        if op.code in _MOVES:
            wanted = [limits.get(v, (np.inf, -np.inf)) for v in op.outputs]
        for value in op.inputs:
            sides = [limits.get(value, (np.inf, -np.inf)), *wanted]
            limits[value] = min(low for low, _ in sides), max(high for _, high in sides)
    fixed: dict[Value, tuple[float, float]] = {}
    for op in graph.operators:
        known = _FIXED.get(op.code)
        if op.code in _MOVES - _JOINS:
            known = next((fixed[v] for v in op.inputs if v in fixed), None)
        if known is not None:
            fixed |= dict.fromkeys(op.outputs, known)
    narrowed: Ranges = {}
    for key, ends in ranges.items():
        least, largest = np.clip(np.array(fixed.get(key, ends), np.float32), *limits.get(key, _ALL))
        narrowed[key] = least, largest
    return narrowed


def _activations(path: Path, batches: Batches) -> Iterator[tuple[str, Array]]:
    """Return the values of every float tensor that a file computes or is given, batch by batch."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter = Interpreter(
        model_path=str(path), num_threads=1, experimental_preserve_all_tensors=True,
        experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )  # fmt: skip
    signature, places = interpreter._get_full_signature_list()[SIGNATURE], dict[int, str]()  # a runner hides the inside
    for feeds in batches:
        for name, index in signature["inputs"].items():
            interpreter.resize_tensor_input(index, feeds[name].shape)
        interpreter.allocate_tensors()
        for name, index in signature["inputs"].items():
            interpreter.set_tensor(index, feeds[name])
        interpreter.invoke()
        if not places:
            operators = interpreter._get_ops_details()
            computed = {*signature["inputs"].values(), *(int(i) for operator in operators for i in operator["outputs"])}
            details = (d for d in interpreter.get_tensor_details() if d["dtype"] is np.float32 and all(d["shape"]))
            places = {d["index"]: d["name"] for d in details if d["index"] in computed}
        for index, name in places.items():
            values = interpreter.get_tensor(index).reshape(-1)
            usual = values.min() > -_LOWEST and values.max() < _LOWEST
            yield name, values if usual else values[np.abs(values) < _LOWEST]
