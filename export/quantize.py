"""Quantisation to int8 by ai-edge-quantizer: weights per channel, activations on synthetic inputs."""

from pathlib import Path

import numpy as np

from onnxfold.errors import ExportError
from onnxfold.export.parity import to_layout
from onnxfold.export.tflite.convert import Port
from onnxfold.export.tflite.serialize import SIGNATURE
from onnxfold.graph.tensors import Array
from onnxfold.quantize.quiet import quiet
from onnxfold.statistics.activations import Batches


def quantize_int8(path: Path, batches: Batches, inputs: tuple[Port, ...]) -> None:
    """Quantise a float32 file in place, its inputs and outputs included, as microcontrollers expect it.

    Parameters
    ----------
    path : Path
        The file.
    batches : list of dict of str to ndarray
        Calibration inputs in ONNX's order of axes.
    inputs : tuple of Port
        The file's inputs and their layouts.

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
            ranges = activation_ranges(path, _in_layouts(batches, inputs))
            content = (
                quantizer.Quantizer(str(path), recipe.static_wi8_ai8())
                .quantize(ranges, enable_progress_bar=False, enable_progress_report=False)
                .quantized_model
            )
    except (RuntimeError, ValueError, KeyError, NotImplementedError) as error:
        raise ExportError(f"ai-edge-quantizer refuses: {' '.join(str(error).split())[:300]}") from None
    path.write_bytes(content)


def activation_ranges(path: Path, batches: Batches) -> dict[str, dict[str, Array]]:
    """Return the smallest and the largest value of every float tensor that a file computes or is given.

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
    dict of str to dict of str to ndarray
        'min' and 'max', by the name of the tensor.
    """
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter = Interpreter(
        model_path=str(path), num_threads=1, experimental_preserve_all_tensors=True,
        experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )  # fmt: skip
    signature = interpreter._get_full_signature_list()[SIGNATURE]  # a runner would hide what is inside
    found: dict[str, dict[str, Array]] = {}
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
                values = interpreter.tensor(detail["index"])()
                seen = found.setdefault(detail["name"], {"min": np.array(np.inf), "max": np.array(-np.inf)})
                finite = values[np.isfinite(values)]
                seen["min"] = np.minimum(seen["min"], finite.min(initial=np.inf))
                seen["max"] = np.maximum(seen["max"], finite.max(initial=-np.inf))
                del values, finite
    return found


def _in_layouts(batches: Batches, inputs: tuple[Port, ...]) -> Batches:
    return [{p.name: to_layout(feeds[p.name], p.layout) for p in inputs} for feeds in batches]
