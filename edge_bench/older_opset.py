"""Conversion of a model to an older operator set, for boards with an old onnxruntime."""

from pathlib import Path

import onnx
from onnx import version_converter

from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model

#: What onnxruntime 1.10 reads, the last one for Python 3.6, which a Jetson Nano has.
OPSET, IR_VERSION = 15, 8


def older_twin(path: str | Path) -> bytes | None:
    """Return a model of a newer operator set as one of :data:`OPSET`, None where it is old enough or cannot be."""
    view = load(path)
    model = to_model(view)
    if all(o.version <= OPSET for o in model.opset_import if o.domain in ("", "ai.onnx")):
        return None
    try:
        twin = version_converter.convert_version(model, OPSET)
        twin.ir_version = min(twin.ir_version, IR_VERSION)
        onnx.checker.check_model(twin, full_check=True)
    except Exception:  # the converter raises what it likes for operators that the older set does not have
        return None
    content: bytes = twin.SerializeToString()
    return content
