"""The values that an image or recording takes, read from its type and the normalisation that the graph begins with.

A network that divides by 255 and subtracts a mean by itself takes pixels of 0..255; inputs of unit deviation would be
one grey for it. What a graph does with an input before anything else is ``factor x + offset``, number by number; inputs
are drawn so that this has zero mean and unit deviation, within the range that pixels have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto, helper

from onnxfold.graph.nodes import attr_float, attr_int, attr_ints
from onnxfold.graph.tensors import Array, constant_value, is_float, loaded
from onnxfold.graph.view import GraphView

Numbers = npt.NDArray[np.float64]

#: Numbers of channels that images have.
IMAGE_CHANNELS = (1, 3, 4)
_RANK = 4
_BYTE = 255.0
#: Numbers above this are of pixels up to 255, numbers up to 1 of pixels up to 1; between them nothing is known.
_OF_BYTES = 16.0
#: Deviations that pixels have, as parts of their range; what a graph divides by may be the range instead.
_DEVIATIONS, _USUAL = (0.1, 0.4), 0.25
#: Deviation of speech in 16 bits: the level of -26 dBov that recordings are brought to (ITU-T P.56).
_SPEECH = 32768 * 10 ** (-26 / 20)
#: Nodes that change no value, and only a type.
_SAME = frozenset({"Identity", "Dropout", "Cast"})


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


def input_scale(view: GraphView, name: str) -> InputScale | None:
    """Return the values that an input takes; None where the graph does not say so, or they are standardised."""
    shape, type_ = view.shape(name) or (), view.elem_type(name)
    if type_ == TensorProto.INT16 and any(is_float(attr_int(n, "to", 0)) for n in view.consumers(name)):
        return InputScale(np.zeros(1), np.full(1, _SPEECH))
    if len(shape) != _RANK or not {shape[1], shape[3]} & set(IMAGE_CHANNELS):
        return None
    if not is_float(type_) and type_ not in (TensorProto.UINT8, TensorProto.INT32, TensorProto.INT64):
        return None
    front = _Front(view, name)
    if not is_float(type_) and not front.is_float:
        return None
    scale = front.scale()
    if type_ == TensorProto.UINT8 and (scale is None or scale.largest != _BYTE):
        return _pixels(np.zeros(1), np.ones(1), _BYTE)
    return scale if is_float(type_) or (scale is not None and scale.largest == _BYTE) else None


class _Front:
    """The first steps of a graph behind an input: ``factor x + offset``, then perhaps known statistics."""

    def __init__(self, view: GraphView, name: str) -> None:
        self._view = view
        self.factor, self.offset = np.ones((1,) * _RANK), np.zeros((1,) * _RANK)
        self.statistics: tuple[Numbers, ...] | None = None
        self.is_float = is_float(view.elem_type(name))
        perm = list(range(_RANK))
        while (node := self._only_reader(name)) is not None:
            if node.op_type == "Transpose":
                own = attr_ints(node, "perm", range(_RANK)[::-1])
                perm = [perm[axis] for axis in own]
                self.factor, self.offset = self.factor.transpose(own), self.offset.transpose(own)
            elif not self._follows(node, name):
                break
            name = node.output[0]
        back = np.argsort(perm)
        self.factor, self.offset = self.factor.transpose(back), self.offset.transpose(back)
        self.statistics = None if self.statistics is None else tuple(v.transpose(back) for v in self.statistics)

    def scale(self) -> InputScale | None:
        """Return which values are standardised behind these nodes."""
        if not np.isfinite(self.factor).all() or not self.factor.all():
            return None
        if self.statistics is not None:
            mean, deviation = self.statistics
            mean, deviation = (mean - self.offset) / self.factor, deviation / np.abs(self.factor)
            # What lies in 0..a deviates by no more than sqrt(mean (a - mean)).
            largest = _BYTE if mean.max() > _OF_BYTES else 1.0
            fits = mean.min() > 0.0 and (deviation**2 <= mean * (largest - mean)).all()
            return InputScale(mean, deviation, largest if fits else np.inf)
        centre, spread = -self.offset / self.factor, 1.0 / np.abs(self.factor)
        if np.allclose(centre, 0.0) and np.allclose(spread, 1.0):
            return None
        numbers = max(float(centre.max()), float(spread.max()))
        known = numbers <= 1.0 or _OF_BYTES < numbers <= _BYTE + 1.0
        if not known or centre.min() < 0.0:
            return InputScale(centre, spread)
        return _pixels(centre, spread, 1.0 if numbers <= 1.0 else _BYTE)

    def _only_reader(self, name: str) -> NodeProto | None:
        readers = [n for n in self._view.consumers(name) if n.op_type != "Shape"]
        is_output = name in self._view.output_names or self.statistics is not None
        return readers[0] if len(readers) == 1 and not is_output else None

    def _follows(self, node: NodeProto, name: str) -> bool:
        """Take a node in; return whether it is one of these."""
        if node.op_type in _SAME:
            self.is_float = self.is_float or is_float(attr_int(node, "to", 0))
            return True
        if node.op_type == "BatchNormalization":
            mean, variance = (self._constant(n) for n in node.input[3:5])
            if mean is None or variance is None:
                return False
            deviation = np.sqrt(variance + attr_float(node, "epsilon", 1e-5))
            self.statistics = mean.reshape(1, -1, 1, 1), deviation.reshape(1, -1, 1, 1)
            return True
        if node.op_type not in ("Add", "Sub", "Mul", "Div") or len(node.input) != 2:
            return False
        is_first = node.input[0] == name
        number = self._constant(node.input[1 if is_first else 0])
        if number is None or number.ndim > _RANK or (node.op_type == "Div" and not (is_first and number.all())):
            return False
        number = number.reshape((1,) * (_RANK - number.ndim) + number.shape)
        if node.op_type in ("Mul", "Div"):
            by = number if node.op_type == "Mul" else 1.0 / number
            self.factor, self.offset = self.factor * by, self.offset * by
        elif node.op_type == "Add" or is_first:
            self.offset = self.offset + (number if node.op_type == "Add" else -number)
        else:
            self.factor, self.offset = -self.factor, number - self.offset
        return True

    def _constant(self, name: str) -> Numbers | None:
        if self._view.is_weight(name):
            return np.asarray(self._view.weight(name), np.float64)
        node = self._view.producer(name)
        value = None if node is None else constant_value(node)
        return None if value is None else np.asarray(loaded(value), np.float64)


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
    for info in network.graph.input:
        if info.name in scales and not is_float(view.elem_type(info.name)):
            info.type.tensor_type.elem_type = TensorProto.FLOAT
    for name, scale in scales.items():
        dtype = standard_type(view.elem_type(name))
        spread, centre = (network.add_weight(name, v.astype(dtype)) for v in (scale.spread, scale.centre))
        product, renamed[name] = network.fresh_name(f"{name}_spread"), network.fresh_name(f"{name}_scaled")
        nodes.append(helper.make_node("Mul", [name, spread], [product]))
        nodes.append(helper.make_node("Add", [product, centre], [renamed[name]]))
    network.rename_inputs(renamed)
    network.replace_nodes([*nodes, *network.nodes])
    return network
