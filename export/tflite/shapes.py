"""Shapes of all activations, with the free dimensions marked."""

from onnx import TensorProto

from onnxfold.errors import ConfigError, ExportError
from onnxfold.export.tflite.layout import Dynamic, Shape
from onnxfold.graph.view import GraphView


def activation_shapes(view: GraphView) -> dict[str, Shape]:
    """Return the ONNX shapes of all activations that are known; free dimensions are Dynamic."""
    fixed = view.copy()
    sizes_of: dict[str, tuple[int, ...]] = {}
    for name in view.input_names:
        shape = view.shape(name)
        if shape is None or view.elem_type(name) in (TensorProto.STRING, TensorProto.UNDEFINED):
            raise ExportError(f"input '{name}' is not a numeric tensor of known rank, which TFLite needs")
        if None in shape[1:]:
            text = ",".join("?" if d is None else str(d) for d in shape)
            raise ExportError(
                f"input '{name}' has the shape ({text}), and TFLite needs every size but the "
                "batch: give --input-shapes "
                f"{name}:{text.replace('?', '1', 1) if shape[0] is None else text}"
            )
        sizes_of[name] = tuple(1 if d is None else d for d in shape)
    fixed.assume({**fixed.input_shapes, **sizes_of})
    shapes: dict[str, Shape] = {}
    names = [*view.input_names, *(o for n in view.nodes for o in n.output if o)]
    for name in names:
        sizes, free = fixed.shape(name), view.shape(name)
        if sizes is None or None in sizes:
            continue
        marks = free if free is not None and len(free) == len(sizes) else (None,) * len(sizes)
        pairs = zip(sizes, marks, strict=True)
        shapes[name] = tuple(Dynamic(size or 0) if mark is None else int(size or 0) for size, mark in pairs)
    return shapes


def fix_to_one_sample(view: GraphView) -> None:
    """Write a batch of one into the model where the batch is free."""
    shapes = {}
    for name in view.input_names:
        shape = view.shape(name)
        if shape is None or None in shape[1:]:
            text = "?" if shape is None else ",".join("?" if d is None else str(d) for d in (1, *shape[1:]))
            raise ConfigError(f"input '{name}' has no fixed shape: give --input-shapes {name}:{text}")
        shapes[name] = tuple(1 if d is None else d for d in shape)
    view.fix_input_shapes(shapes)
