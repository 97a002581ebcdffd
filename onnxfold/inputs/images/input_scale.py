"""The values that an image or recording takes, told from its type, the graph's first nodes and its first layer.

A network that divides by 255 and subtracts a mean by itself takes pixels of 0..255; inputs of unit deviation would be
one grey for it. What a graph does with an input before anything else is ``factor x + offset``, number by number; inputs
are drawn so that this has zero mean and unit deviation, within the range that pixels have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto, helper

from onnxfold.channels.layers import batch_norm
from onnxfold.errors import VerificationError
from onnxfold.graph.nodes import DEFAULT_DOMAINS, attr_int, node_key
from onnxfold.graph.patterns import only_reader
from onnxfold.graph.run.node_runner import NodeRunner, NodeSessions
from onnxfold.graph.tensors import Array, constant_value, is_float, loaded
from onnxfold.graph.view import GraphView
from onnxfold.inputs.images.first_layer import BYTE as _BYTE
from onnxfold.inputs.images.first_layer import pixels_of

Numbers = npt.NDArray[np.float64]

#: Numbers of channels that images have.
IMAGE_CHANNELS = (1, 3, 4)
_RANK = 4
#: Numbers above this are of pixels up to 255, numbers up to 1 of pixels up to 1; between them nothing is known.
_OF_BYTES = 16.0
#: Deviations that pixels have, as parts of their range; what a graph divides by may be the range instead.
_DEVIATIONS, _USUAL = (0.1, 0.4), 0.25
#: Deviation of speech in 16 bits: the level of -26 dBov that recordings are brought to (ITU-T P.56).
_SPEECH = 32768 * 10 ** (-26 / 20)
#: Number that a first node is shown, since what it gives is rounded; sides of the images: parts of large ones are read,
#: and a mean image fits a single position.
_UNIT, _SIDES = 64.0, (4, 1)
#: Nodes that scale numbers, and those that move channels.
_MOVES = frozenset({
    "Add", "Cast", "Concat", "Div", "Dropout", "Gather", "Identity", "Mul", "Neg", "Slice", "Split", "Squeeze", "Sub",
    "Transpose", "Unsqueeze",
})  # fmt: skip
#: Most channels along an axis that may hold those of images: of more, it is another one.
_MOST = 256


@dataclass(frozen=True, eq=False)
class InputScale:
    """Values of an input: ``centre + spread z`` for z of zero mean and unit deviation."""

    centre: Numbers  # numbers that broadcast to the input
    spread: Numbers
    largest: float = np.inf  # the largest pixel, where values are pixels from 0 up; infinite where they are not

    def values(self, standard: Array, dtype: npt.DTypeLike = np.float64) -> Array:
        """Return inputs of a type for standardised numbers."""
        values: Array = self.centre + self.spread * standard
        if not np.isinf(self.largest):
            values = np.clip(values, 0.0, self.largest)
        if np.issubdtype(dtype, np.integer):
            values = np.clip(np.rint(values), np.iinfo(dtype).min, np.iinfo(dtype).max)
        return values.astype(dtype)

    def standard(self, values: Array) -> Array:
        """Return standardised numbers for inputs."""
        numbers: Array = (values - self.centre) / self.spread
        return numbers


def has_channels_last(shape: Sequence[int | None]) -> bool:
    """Whether a shape is that of images whose last axis holds their channels."""
    return len(shape) == _RANK and shape[1] not in IMAGE_CHANNELS and shape[3] in IMAGE_CHANNELS


def holds_images(values: Array) -> bool:
    """Whether an array holds images: numbers or bytes along four axes."""
    return values.ndim == _RANK and (values.dtype.kind == "f" or values.dtype == np.uint8)


def sides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return height and width of images of a shape."""
    return shape[1:3] if has_channels_last(shape) else shape[2:]


def is_image(shape: Sequence[int | None]) -> bool:
    """Whether a shape is that of images, with the channels first or last."""
    return len(shape) == _RANK and bool({shape[1], shape[3]} & set(IMAGE_CHANNELS))


def input_scale(view: GraphView, name: str) -> InputScale | None:
    """Return the values that an input takes; None where the graph does not say so, or they are standardised."""
    shape, type_ = view.shape(name) or (), view.elem_type(name)
    if type_ == TensorProto.INT16 and any(is_float(attr_int(n, "to", 0)) for n in view.consumers(name)):
        return InputScale(np.zeros(1), np.full(1, _SPEECH))
    if not is_image(shape):
        return None
    if not is_float(type_) and type_ not in (TensorProto.UINT8, TensorProto.INT32, TensorProto.INT64):
        return None
    front = _Front(view, name)
    if not is_float(type_) and not front.is_float:
        return None
    scale = front.scale()
    if type_ == TensorProto.UINT8 and (scale is None or scale.largest != _BYTE):
        return _pixels(np.zeros(1), np.ones(1), _BYTE)
    if scale is None and is_float(type_):
        pixels = view.pixels[name] if name in view.pixels else pixels_of(view, front.end)
        return None if pixels is None else _unscaled(*pixels)
    return scale if is_float(type_) or (scale is not None and scale.largest == _BYTE) else None


def first_read(view: GraphView, name: str) -> str:
    """Return the tensor that the network behind the first scaling of an image reads."""
    return _Front(view, name).end


def _unscaled(largest: float, mean: float) -> InputScale:
    """Return the scale of pixels of the usual deviation, which have no bounds where their mean was taken away."""
    return InputScale(np.full(1, mean), np.full(1, _USUAL * largest), largest if mean > 0.0 else np.inf)


class _Front:
    """The first steps of a graph behind an input: ``factor x + offset`` of its channels, then perhaps known statistics.

    They are run on small images, of which each has one channel that is not zero.
    """

    def __init__(self, view: GraphView, name: str) -> None:
        self._view, self._values = view, dict[str, Array]()
        shape = view.shape(name) or ()
        axes = (3, 1)[: 1 + ((shape[1] or 1) <= _MOST)] if has_channels_last(shape) else (1,)
        for self._axis in axes:
            channels = shape[self._axis] or 1
            _, self.end, values = max((self._run(name, channels, side) for side in _SIDES), key=lambda run: run[0])
            if (view.shape(self.end) or ())[1:2] in ((), (None,), (channels,)):
                break
        self.is_float = values.dtype.kind == "f"
        answers = np.asarray(values, np.float64)
        if answers.ndim == _RANK and (answers == answers[:, :, :1, :1]).all():
            answers = answers[:, :, :1, :1]
        #: What each channel of the input adds to channels behind it, and what these are without any.
        self._factors, self._offsets = (answers[1:] - answers[0]) / _UNIT, answers[0]
        self.statistics = self._statistics(self.end, len(self._offsets)) if answers.ndim == _RANK else None

    def _run(self, name: str, channels: int, side: int) -> tuple[int, str, Array]:
        """Run what only scales and moves channels; return the number of nodes, and what is read behind them."""
        units = np.tile(_UNIT * np.eye(channels + 1, channels, -1)[:, :, None, None], (side, side))
        units = np.moveaxis(units, 1, self._axis)
        self._values = {name: units.astype(helper.tensor_dtype_to_np_dtype(self._view.elem_type(name)))}
        sessions, waiting, ends, done = NodeSessions(self._view), [name], dict[str, bool](), set[str]()
        while waiting:
            for node in self._view.consumers(waiting.pop()):
                if node_key(node) not in done and self._follows(node, sessions):
                    done.add(node_key(node))
                    waiting += node.output
        for tensor in self._values:
            readers = [n for n in self._view.consumers(tensor) if node_key(n) not in done and n.op_type != "Shape"]
            if readers or tensor in self._view.output_names:
                ends[tensor] = any(node.op_type == "Conv" for node in readers)
        read = [tensor for tensor, is_convolved in ends.items() if is_convolved] or list(ends)
        end = read[0] if read and all(self._are_alike(read[0], other) for other in read) else name
        return len(done), end, self._values[end]

    def _are_alike(self, first: str, other: str) -> bool:
        """Whether two tensors hold parts of the same images."""
        means = [values.mean(axis=(2, 3)) for values in (self._values[first], self._values[other]) if values.ndim == 4]
        return first == other or (len(means) == 2 and np.array_equal(*means))

    def _follows(self, node: NodeProto, sessions: NodeSessions) -> bool:
        """Run a node that scales or moves channels on the images; return whether it is one, and all of it is known."""
        if node.op_type not in _MOVES or node.domain not in DEFAULT_DOMAINS:
            return False
        names = [n for n in node.input if n and not self._view.is_weight(n)]
        feeds = {n: value for n in names if (value := self._value(n)) is not None}
        if len(feeds) < len(set(names)):
            return False
        try:
            values = NodeRunner(self._view, node, sessions).run(feeds)
        except VerificationError:
            return False
        if not all(array.size for array in values.values()):  # a part of the image that small ones lack
            return False
        self._values |= values
        return True

    def _value(self, name: str) -> Array | None:
        if name in self._values:
            return self._values[name]
        node = self._view.producer(name)
        value = None if node is None else constant_value(node)
        return None if value is None else loaded(value)

    def _statistics(self, end: str, channels: int) -> tuple[Numbers, Numbers] | None:
        """Return mean and deviation of channels where a normalisation by known ones alone reads them."""
        node = only_reader(self._view, end)
        norm = None if node is None else batch_norm(self._view, node)
        if norm is None or not (self._view.is_weight(norm.mean) and self._view.is_weight(norm.variance)):
            return None
        mean, variance = (np.asarray(self._view.weight(n), np.float64) for n in (norm.mean, norm.variance))
        if len(mean) != channels:
            return None
        return mean[:, None, None], np.sqrt(variance + norm.epsilon)[:, None, None]

    def _of_input(self, numbers: Numbers) -> Numbers:
        """Return the mean of numbers of the channels that each channel of the input becomes, along the input's axes."""
        becomes = (self._factors != 0.0).any(axis=(2, 3))
        parts = [np.broadcast_to(numbers, self._factors.shape[1:])[row].mean(axis=0) for row in becomes]
        return np.moveaxis(np.stack(parts)[None], 1, self._axis)

    def scale(self) -> InputScale | None:
        """Return which values are standardised behind these nodes; None where channels are mixed or lost."""
        if self._factors.ndim != _RANK or not self._factors.size or not np.isfinite(self._factors).all():
            return None
        becomes = (self._factors != 0.0).any(axis=(2, 3))
        if not becomes.any(axis=1).all() or (becomes.sum(axis=0) > 1).any():
            return None
        factors: Numbers = self._factors.sum(axis=0)
        factors[factors == 0.0] = 1.0  # of channels that are constant
        if self.statistics is not None:
            mean, deviation = self.statistics
            mean, deviation = self._of_input((mean - self._offsets) / factors), self._of_input(deviation / abs(factors))
            # What lies in 0..a deviates by no more than sqrt(mean (a - mean)).
            largest = _BYTE if mean.max() > _OF_BYTES else 1.0
            fits = mean.min() > 0.0 and (deviation**2 <= mean * (largest - mean)).all()
            return InputScale(mean, deviation, largest if fits else np.inf)
        centre, spread = self._of_input(-self._offsets / factors), self._of_input(1.0 / abs(factors))
        if np.allclose(centre, 0.0) and np.allclose(spread, 1.0):
            return None
        numbers = max(float(centre.max()), float(spread.max()))
        known = numbers <= 1.0 or _OF_BYTES < numbers <= _BYTE + 1.0
        if not known or centre.min() < 0.0:
            return InputScale(centre, spread)
        return _pixels(centre, spread, 1.0 if numbers <= 1.0 else _BYTE)


def _pixels(centre: Numbers, spread: Numbers, largest: float) -> InputScale:
    """Return the scale of pixels; numbers of a graph that are no mean and deviation give way to usual ones."""
    low, high = (part * largest for part in _DEVIATIONS)
    centre = np.where(centre > 0.0, centre, largest / 2.0)
    return InputScale(centre, np.where((spread >= low) & (spread <= high), spread, _USUAL * largest), largest)


def standard_type(type_: int) -> npt.DTypeLike:
    """Return the type of the standardised numbers for an input of a type."""
    return helper.tensor_dtype_to_np_dtype(type_ if is_float(type_) else TensorProto.FLOAT)


def standardise(view: GraphView, scales: Mapping[str, InputScale]) -> GraphView:
    """Return a network that takes standardised numbers at some inputs, floats in place of integers, too.

    It is the same where there are none.
    """
    if not scales:
        return view
    network = view.copy()
    network.drop_inferable_infos()
    nodes, renamed = [], {}
    for name in scales:
        if not is_float(view.elem_type(name)):
            network.declare_input(name, TensorProto.FLOAT, view.declared_shapes[name])
    for name, scale in scales.items():
        dtype = standard_type(view.elem_type(name))
        spread, centre = (network.add_weight(name, v.astype(dtype)) for v in (scale.spread, scale.centre))
        product, renamed[name] = network.fresh_name(f"{name}_spread"), network.fresh_name(f"{name}_scaled")
        nodes.append(helper.make_node("Mul", [name, spread], [product]))
        nodes.append(helper.make_node("Add", [product, centre], [renamed[name]]))
    network.rename_inputs(renamed)
    network.pixels = {**view.pixels, **dict.fromkeys(scales)}
    network.replace_nodes([*nodes, *network.nodes])
    return network
