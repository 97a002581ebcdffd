"""Networks whose images come in another shape: flat, without an axis of channels, or in a batch that is not declared.

What such a network does first is to bring its input into the shape of images. Inputs are drawn, inverted and mirrored
for the network behind that, and brought back.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from onnx import NodeProto

from onnxfold.graph.nodes import node_key
from onnxfold.graph.patterns import only_reader
from onnxfold.graph.tensors import Shape, constant_value, is_float, loaded
from onnxfold.graph.view import GraphView
from onnxfold.inputs.images.first_layer import pixels_of
from onnxfold.inputs.images.input_scale import IMAGE_CHANNELS, first_read, is_image
from onnxfold.statistics.activations import Batches

#: Nodes that change the shape alone, those that do the same to every number, and those that may stand between an image
#: and the first convolution.
_RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
_NUMBERS = frozenset({"Add", "Sub", "Mul", "Div"})
_SAME = frozenset({"Cast", "Identity", "Dropout"})
_IN_FRONT = _NUMBERS | _SAME | {"Transpose", "BatchNormalization", "Pad", "Clip"}
#: Least height and width, since a recording that is written with axes of length one is no image; and its axes.
_LEAST, _RANK = 8, 4


@dataclass(frozen=True)
class ImageForm:
    """A network that takes images, and the shapes that the model itself gives them; there may be none."""

    view: GraphView
    own: Mapping[str, tuple[int, ...]]  # of a batch, with -1 for an axis of any length
    shapes: Mapping[str, tuple[int, ...]]

    def images(self, batches: Batches) -> Batches:
        """Return inputs of the model as images."""
        return [{**b, **{n: b[n].reshape(shape) for n, shape in self.shapes.items()}} for b in batches]

    def inputs(self, batches: Batches) -> Batches:
        """Return images as inputs of the model."""
        return [{**b, **{n: b[n].reshape(shape) for n, shape in self.own.items()}} for b in batches]


def image_form(view: GraphView) -> ImageForm:
    """Return the network that takes images as such; the network itself where it does."""
    own, shapes, dropped = {}, {}, set()
    renamed: dict[str, str] = {}
    for name in view.input_names:
        reshapes, tensor = _reshaped(view, name)
        shape = _image_shape(view.shape(name), view.shape(tensor)) if reshapes else None
        if shape is not None and _leads_to_convolution(view, tensor):
            own[name] = tuple(-1 if d is None else d for d in view.shape(name) or ())
            shapes[name] = tuple(-1 if d is None else d for d in shape)
            dropped |= {node_key(node) for node in reshapes}
            renamed |= {node.output[0]: node.input[0] for node in reshapes}
    if not shapes:
        return ImageForm(view, {}, {})
    network = view.copy()
    network.drop_inferable_infos()
    network.substitute({}, dropped)
    while network.rename_inputs(renamed):
        pass
    for name, image in shapes.items():
        network.declare_input(name, view.elem_type(name), [None if size < 0 else size for size in image])
    network.assume({name: shape for name, shape in view.input_shapes.items() if name not in shapes})
    return ImageForm(network, own, shapes)


def unscaled_pixels(view: GraphView) -> dict[str, tuple[float, float] | None]:
    """Return, of images that are floats, what their first layer tells of pixels; see :func:`pixels_of`."""
    images = image_form(view).view
    names = [n for n in images.input_names if is_image(images.shape(n) or ()) and is_float(images.elem_type(n))]
    return {name: pixels_of(images, first_read(images, name)) for name in names}


def _reshaped(view: GraphView, tensor: str) -> tuple[list[NodeProto], str]:
    """Return the nodes that change the shape of a tensor, up to the last of them, and what this writes."""
    reshapes: list[NodeProto] = []
    last = tensor
    while (node := only_reader(view, tensor)) is not None and node.input[0] == tensor:
        if node.op_type in _RESHAPES:
            reshapes.append(node)
            last = node.output[0]
        elif node.op_type not in _SAME and not _is_scaled(view, node):
            break
        tensor = node.output[0]
    return reshapes, last


def _is_scaled(view: GraphView, node: NodeProto) -> bool:
    """Whether a node combines every number with the same one."""
    if node.op_type not in _NUMBERS:
        return False
    if view.is_weight(node.input[1]):
        return view.weight_size(node.input[1]) == 1
    producer = view.producer(node.input[1])
    value = None if producer is None else constant_value(producer)
    return value is not None and loaded(value).size == 1


def _image_shape(own: Shape | None, image: Shape | None) -> Shape | None:
    """Return the shape of a batch of images where a tensor holds those of an input, None where it does not."""
    if not own or image is None or len(image) != _RANK:
        return None
    sample, own_sample = ([d for d in shape[1:] if d is not None] for shape in (image, own))
    if len(sample) < 3 or len(own_sample) < len(own) - 1 or not {sample[0], sample[2]} & set(IMAGE_CHANNELS):
        return None
    if min(sample[1:] if sample[0] in IMAGE_CHANNELS else sample[:2]) < _LEAST:
        return None
    if math.prod(own_sample) == math.prod(sample):
        return (image[0] if own[0] is None else own[0], *sample)
    return (1, *sample) if own[0] is not None and own[0] * math.prod(own_sample) == math.prod(sample) else None


def _leads_to_convolution(view: GraphView, tensor: str) -> bool:
    waiting, seen = [tensor], {tensor}
    while waiting:
        readers = view.consumers(waiting.pop())
        if any(node.op_type == "Conv" for node in readers):
            return True
        behind = {n.output[0] for n in readers if n.op_type in _IN_FRONT} - seen
        waiting += behind
        seen |= behind
    return False
