"""Cast."""

from onnxfold.export.tflite.calculator import Calculator
from onnxfold.export.tflite.context import Op
from onnxfold.export.tflite.layout_rules import Follow
from onnxfold.export.tflite.registry import converter


@converter("Cast", layouts=Follow(elementwise=True))
def cast(op: Op) -> None:
    """CAST between the element types that TFLite has; other floats are float32 throughout the file."""
    x = op.read(0, op.planned())
    wanted = op.result_type()
    if wanted == "BOOL" and x.element_type != "BOOL":
        op.write(Calculator(op.graph).binary("NOT_EQUAL", x, 0, "BOOL"), op.planned())
    else:
        op.write(op.graph.cast(x, wanted), op.planned())
