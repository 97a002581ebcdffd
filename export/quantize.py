"""Quantisation to int8 by ai-edge-quantizer: weights per channel, activations by their ranges on inputs."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from onnxfold.errors import ExportError
from onnxfold.export.parity import to_layout
from onnxfold.export.tflite.convert import Converted, Port
from onnxfold.export.tflite.graph import Graph
from onnxfold.export.tflite.serialize import SIGNATURE, inline_buffers, tensor_names
from onnxfold.graph.tensors import Array
from onnxfold.quantize.quiet import quiet
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
#: Parts that stay in float32 where int8 makes too much noise: one of eight, up to four of them, one of four, a half.
_SHARES = (8, 4, 2)
#: Numbers of this size stand for minus infinity where maxima are padded.
_LOWEST = 3e38
#: Smallest and largest value of tensors.
Ranges = dict[int, tuple[Array, Array]]


@dataclass(frozen=True)
class Int8File:
    """The result of a quantisation: the operators left in float32, and the noise with none left."""

    in_float: int = 0  # operators that stay in float32
    snr_db: float = math.inf  # signal-to-noise ratio of the outputs without them


def quantize_int8(
    converted: Converted, path: Path, batches: Batches, measure: Callable[[], float], least: float
) -> Int8File:
    """Quantise a float32 file in place, its inputs and outputs included, as microcontrollers expect it.

    Noise is seldom spread evenly: where the outputs have too much of it, a part of the network stays in float32, half
    of its operators at most; where that is not enough, the part that helps most.
    """
    names = tensor_names(converted.graph)
    observed = activation_ranges(path, _in_layouts(batches, converted.inputs))
    ranges = relevant_ranges(converted.graph, {key: observed[name] for key, name in names.items() if name in observed})
    exact, of_tensors = path.read_bytes(), {names[key]: {"min": a, "max": b} for key, (a, b) in ranges.items()}
    scopes = ["".join(f"{names[id(v)]};" for v in op.outputs) for op in converted.graph.operators]

    def try_in_float(in_float: Sequence[str]) -> float:
        path.write_bytes(exact)
        path.write_bytes(_quantise_file(path, of_tensors, in_float))
        return measure()

    tries = [(try_in_float(()), list[str]())]
    for share in _SHARES if tries[0][0] < least else ():
        size = -(-len(scopes) // share)
        parts = [scopes[i : i + size] for i in range(0, len(scopes), size)]
        if any(_enough(tries, part, try_in_float, least) for part in parts):
            break
        if share == _SHARES[0]:
            best = [part for _, part in sorted(tries[1:], key=lambda attempt: -attempt[0])]
            several = ([scope for part in best[:count] for scope in part] for count in range(2, share // 2 + 1))
            if any(_enough(tries, kept, try_in_float, least) for kept in several):
                break
    _, kept = max(tries, key=lambda attempt: attempt[0])
    if kept != tries[-1][1]:
        try_in_float(kept)
    return Int8File(len(kept), tries[0][0])


def _enough(
    tries: list[tuple[float, list[str]]], kept: list[str], try_in_float: Callable[[Sequence[str]], float], least: float
) -> bool:
    """Try a file with some operators in float32; return whether its ratio is enough."""
    tries.append((try_in_float(kept), kept))
    return tries[-1][0] >= least


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


def activation_ranges(path: Path, batches: Batches) -> dict[str, tuple[Array, Array]]:
    """Return the smallest and the largest value of every float tensor that a file computes or is given.

    The quantiser's own calibration averages ranges over batches, which cuts off what only some samples reach, and fails
    where the delegate that it runs in leaves out a tensor that nobody reads.
    """
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter = Interpreter(
        model_path=str(path), num_threads=1, experimental_preserve_all_tensors=True,
        experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )  # fmt: skip
    signature = interpreter._get_full_signature_list()[SIGNATURE]  # a runner would hide what is inside
    ranges: dict[str, tuple[Array, Array]] = {}
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
                values = values[np.abs(values) < _LOWEST]
                low, high = ranges.get(detail["name"], (np.inf, -np.inf))
                ranges[detail["name"]] = values.min(initial=low), values.max(initial=high)
    return ranges


def _in_layouts(batches: Batches, inputs: tuple[Port, ...]) -> Batches:
    return [{p.name: to_layout(feeds[p.name], p.layout) for p in inputs} for feeds in batches]
