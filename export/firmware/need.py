"""Memory needs of a model on a board: in TensorFlow Lite Micro, or counted on the graph where it cannot be exported."""

import tempfile
from pathlib import Path

from onnxfold.budget.costs.flash import count_flash
from onnxfold.budget.costs.ram import count_ram
from onnxfold.budget.costs.shapes import BatchOfOne
from onnxfold.budget.devices import MemoryNeed
from onnxfold.errors import ConfigError, ExportError, UnsupportedModelError
from onnxfold.export.api import export_model, open_model
from onnxfold.export.firmware.tflm_model import RUNTIME, read_tflite
from onnxfold.export.tflite.shapes import fix_to_one_sample
from onnxfold.graph.files.save import to_model
from onnxfold.graph.view import GraphView


def need_of(view: GraphView, dtype: str = "float32") -> MemoryNeed:
    """Return the memory need of a model in TensorFlow Lite Micro; a model that cannot be exported is counted."""
    try:
        with tempfile.TemporaryDirectory(prefix="onnxfold-need-") as folder:
            fixed_view = open_model(to_model(view), view.input_shapes or None)
            fix_to_one_sample(fixed_view)
            path = Path(folder) / "model.tflite"
            export_model(to_model(fixed_view), path, dtype=dtype, verify=False)
            return read_tflite(path).need
    except (ConfigError, ExportError, UnsupportedModelError) as error:
        return counted_need(view, str(error), shrinks=4 if dtype == "int8" else 1)


def counted_need(view: GraphView, why: str, *, shrinks: int = 1) -> MemoryNeed:
    """Return the least memory need of a model, counted on its graph, with the reason why it is not known better."""
    try:
        sizes = BatchOfOne(view)
        buffers = sum(_bytes(sizes, name) for name in (*view.input_names, *view.output_names))
    except UnsupportedModelError:
        buffers = 0
    ram = count_ram(view)
    return MemoryNeed(
        runtime=RUNTIME, model_bytes=count_flash(view) // shrinks, buffer_bytes=buffers // shrinks,
        activation_bytes=None if ram is None else ram // shrinks,
        basis=f"counted on the graph, lower bounds: {why}", is_exact=False,
    )  # fmt: skip


def _bytes(sizes: BatchOfOne, name: str) -> int:
    size = sizes.element_bytes(name)
    for length in sizes.shape(name):
        size *= length
    return size
