"""Quantisation to int8 by ai-edge-quantizer: weights per channel, activations on synthetic inputs."""

from pathlib import Path

import numpy as np

from onnxfold.errors import ExportError
from onnxfold.export.parity import to_layout
from onnxfold.export.tflite.convert import Port
from onnxfold.export.tflite.serialize import SIGNATURE
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
        tool = quantizer.Quantizer(str(path), recipe.static_wi8_ai8())
        with quiet("ai_edge_quantizer"):  # it draws progress bars and warns of its own settings
            calibration = tool.calibrate({SIGNATURE: _whole(batches, inputs)}, num_threads=1)
            content = tool.quantize(
                calibration, enable_progress_bar=False, enable_progress_report=False
            ).quantized_model
    except (RuntimeError, ValueError, KeyError, NotImplementedError) as error:
        raise ExportError(f"ai-edge-quantizer refuses: {' '.join(str(error).split())[:300]}") from None
    path.write_bytes(content)


def _whole(batches: Batches, inputs: tuple[Port, ...]) -> Batches:
    """Return the batches in the file's layouts, as one where the batch is free.

    The calibrator averages the ranges of successive steps, which cuts off what only some samples reach. Within a step
    it takes the true range, so a free batch is calibrated in one step.
    """
    parts = [{p.name: to_layout(feeds[p.name], p.layout) for p in inputs} for feeds in batches]
    if any(not p.shape or p.shape[0] is not None for p in inputs):
        return parts
    return [{p.name: np.concatenate([part[p.name] for part in parts]) for p in inputs}]
