"""Quantisation to int8 by ai-edge-quantizer: weights per channel, activations by their ranges on inputs."""

from pathlib import Path

import numpy as np

from onnxfold.errors import ExportError
from onnxfold.export.equalize import Ranges, equalize, interval
from onnxfold.export.parity import to_layout
from onnxfold.export.tflite.convert import Converted, Port
from onnxfold.export.tflite.graph import Graph
from onnxfold.export.tflite.serialize import SIGNATURE, tensor_names
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


def quantize_int8(converted: Converted, path: Path, batches: Batches, description: str) -> None:
    """Write a converted model in int8, its inputs and outputs included, as microcontrollers expect it.

    Parameters
    ----------
    converted : Converted
        The model; its constants are replaced by others that compute the same.
    path : Path
        Where it lies in float32, and what it is written to.
    batches : list of dict of str to ndarray
        Calibration inputs in ONNX's order of axes.
    description : str
        The model's description.

    Raises
    ------
    ExportError
        If ai-edge-quantizer is not installed or refuses.
    """
    try:
        from ai_edge_quantizer import quantizer, recipe
    except ImportError:
        raise ExportError(
            "int8 needs ai-edge-quantizer, which is not installed: pip install ai-edge-quantizer"
        ) from None
    try:
        with quiet("ai_edge_quantizer"):  # it draws progress bars and warns of its own settings
            names = tensor_names(converted.graph)
            found = activation_ranges(path, _in_layouts(batches, converted.inputs))
            ranges = {key: found[name] for key, name in names.items() if name in found}
            equalize(converted.graph, ranges)
            path.write_bytes(converted.to_bytes(description))
            needed, names = that_matter(converted.graph, ranges), tensor_names(converted.graph)
            content = (
                quantizer.Quantizer(str(path), recipe.static_wi8_ai8())
                .quantize(
                    {names[key]: {"min": low, "max": high} for key, (low, high) in needed.items()},
                    enable_progress_bar=False, enable_progress_report=False,
                )
                .quantized_model
            )  # fmt: skip
    except (RuntimeError, ValueError, KeyError, NotImplementedError) as error:
        raise ExportError(f"ai-edge-quantizer refuses: {' '.join(str(error).split())[:300]}") from None
    path.write_bytes(content)


def that_matter(graph: Graph, ranges: Ranges) -> Ranges:
    """Return the range of every tensor, as far as its readers tell values apart.

    A gate that is open at 8 is as open at 200; steps for numbers between them are taken from the others.

    Parameters
    ----------
    graph : Graph
        The graph.
    ranges : dict of int to pair of ndarray
        Ranges of channels, by the id of a value.
    """
    told: dict[int, tuple[float, float]] = {id(v): _ALL for v in graph.outputs}
    for op in reversed(graph.operators):
        wanted = [_TOLD_APART.get(op.code, _ALL)]
        if op.code in _MOVES:
            wanted = [told.get(id(v), (np.inf, -np.inf)) for v in op.outputs]
        for value in op.inputs:
            if value is not None:
                sides = [told.get(id(value), (np.inf, -np.inf)), *wanted]
                told[id(value)] = min(low for low, _ in sides), max(high for _, high in sides)
    found: Ranges = {}
    for key, (lows, highs) in ranges.items():
        low, high = told.get(key, _ALL)
        found[key] = np.clip(lows.min(), low, high), np.clip(highs.max(), low, high)
    return found


def activation_ranges(path: Path, batches: Batches) -> dict[str, tuple[Array, Array]]:
    """Return the smallest and largest value of every channel of the float tensors that a file computes or is given.

    The quantiser's own calibration averages ranges over batches, which cuts off what only some samples reach, and fails
    where the delegate that it runs in leaves out a tensor that nobody reads.

    Parameters
    ----------
    path : Path
        A file in float32.
    batches : list of dict of str to ndarray
        Inputs in the order of axes that the file has.

    Returns
    -------
    dict of str to pair of ndarray
        By the name of the tensor; channels are last.
    """
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter = Interpreter(
        model_path=str(path), num_threads=1, experimental_preserve_all_tensors=True,
        experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )  # fmt: skip
    signature = interpreter._get_full_signature_list()[SIGNATURE]  # a runner would hide what is inside
    found: dict[str, tuple[Array, Array]] = {}
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
                low, high = interval(interpreter.tensor(detail["index"])())
                before = found.get(detail["name"], (low, high))
                found[detail["name"]] = np.minimum(before[0], low), np.maximum(before[1], high)
    return found


def _in_layouts(batches: Batches, inputs: tuple[Port, ...]) -> Batches:
    return [{p.name: to_layout(feeds[p.name], p.layout) for p in inputs} for feeds in batches]
