"""Quantisation to int8 by ai-edge-quantizer: weights per channel, activations on synthetic inputs."""

from pathlib import Path

from onnxfold.errors import ExportError
from onnxfold.export.parity import to_layout
from onnxfold.export.tflite.convert import Port
from onnxfold.export.tflite.serialize import SIGNATURE, with_inner_buffers
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
        from ai_edge_quantizer import calibrator, quantizer, recipe, recipe_manager
        from ai_edge_quantizer.utils.qsv_utils import min_max_update
    except ImportError:
        raise ExportError(
            "int8 needs ai-edge-quantizer, which is not installed: pip install ai-edge-quantizer"
        ) from None
    wanted = recipe.static_wi8_ai8()
    try:
        with quiet("ai_edge_quantizer"):  # it draws progress bars and warns of its own settings
            manager = recipe_manager.RecipeManager()
            manager.load_quantization_recipe(wanted)
            # By default the ranges of successive steps are averaged, which cuts off what only some samples reach.
            observer = calibrator.Calibrator(str(path), num_threads=1, qsv_update_func=min_max_update)
            observer.calibrate({SIGNATURE: _in_layouts(batches, inputs)}, manager)
            content = (
                quantizer.Quantizer(str(path), wanted)
                .quantize(observer.get_model_qsvs(), enable_progress_bar=False, enable_progress_report=False)
                .quantized_model
            )
    except (RuntimeError, ValueError, KeyError, NotImplementedError) as error:
        raise ExportError(f"ai-edge-quantizer refuses: {' '.join(str(error).split())[:300]}") from None
    path.write_bytes(with_inner_buffers(content))


def _in_layouts(batches: Batches, inputs: tuple[Port, ...]) -> Batches:
    return [{p.name: to_layout(feeds[p.name], p.layout) for p in inputs} for feeds in batches]
