"""Integers and half floats of a model, folded as the numbers that they stand for and stored as before.

Constants that a DequantizeLinear reads, or a Cast to wider floats, become weights. An integer product with an
activation that is quantised as it comes (DynamicQuantizeLinear) becomes a plain product, and an LSTM of such products a
plain LSTM. So a fold sees weights; activations are quantised and dequantised as before, value by value. In the model
that is written, a changed constant has new scales and integers in the range of those before, and a bias has the scale
of the sums that it is added to. A constant that the fold did not touch keeps its bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper

from onnxfold.graph.nodes import DEFAULT_DOMAINS, attr_int, node_key, rewritten
from onnxfold.graph.patterns import Mismatch, Op, find_match, only_reader
from onnxfold.graph.tensors import Array, largest_float
from onnxfold.graph.view import GraphView
from onnxfold.machine import memory
from onnxfold.passes.normalize.unneeded import RemoveUnused
from onnxfold.quantize.block_weights import BlockWeight, dequantize_blocks, requantize_blocks

_PLAIN = {"ConvInteger": "Conv", "MatMulInteger": "MatMul"}
_PRODUCT = Op("|".join(_PLAIN), ("numbers", "weight", "x_zero", "zero"))
#: Inputs of a DynamicQuantizeLSTM: the numbers, scales and zero points of its weights, which lie input first.
_LSTM_PARTS = ((1, 8, 9), (2, 10, 11))
#: Part of a step by which rounded numbers may miss an integer.
_EXACT = 1e-3
_DYNAMIC = Op("Mul", (Op("Cast", (_PRODUCT,)), Op("Mul", ("x_scale", "scale"))))


@dataclass(frozen=True, eq=False)
class Integers:
    """Integers q that stand for (q - z) s, with one scale and zero point, or one per position of an axis."""

    numbers: Array
    scale: Array
    zero: Array | None = None
    axis: int | None = None  # None with one scale

    @property
    def are_sound(self) -> bool:
        """Whether these are integers, with as many scales and zero points as they need."""
        count = 1 if self.axis is None else self.numbers.shape[self.axis]
        sizes = {part.size for part in (self.scale, self.zero) if part is not None}
        return self.numbers.dtype.kind in "iu" and sizes == {count}

    @property
    def values(self) -> Array:
        """The numbers that the integers stand for."""
        centred = self.numbers.astype(np.float64) - (0 if self.zero is None else self._spread(self.zero))
        return (centred * self._spread(self.scale)).astype(self.scale.dtype)

    def hold(self, values: Array) -> "Integers":
        """Return other numbers as integers in the range of these; where all are such integers, in the same steps."""
        if np.array_equal(values, self.values):
            return self
        others = tuple(i for i in range(values.ndim) if i != self.axis)
        lowest, highest = int(self.numbers.min()), int(self.numbers.max())
        if self.axis is None:
            steps = values / self._spread(self.scale) + (0 if self.zero is None else self._spread(self.zero))
            numbers = np.rint(steps)
            is_inside = bool(((numbers >= lowest) & (numbers <= highest)).all())
            if is_inside and np.abs(steps - numbers).max() < _EXACT:
                return replace(self, numbers=numbers.astype(self.numbers.dtype))
        is_signed = self.numbers.dtype.kind == "i"
        if self.zero is not None and (self.zero.any() or not is_signed):
            low, high = np.minimum(values.min(axis=others), 0), np.maximum(values.max(axis=others), 0)
            scale = _no_zeros((high - low) / max(highest - lowest, 1))
            zero = np.rint(lowest - low / scale)
        else:
            highest = max(highest, -lowest, 1)
            lowest, scale = -highest * is_signed, _no_zeros(np.abs(values).max(axis=others) / highest)
            zero = np.zeros_like(scale)
        scale = scale.astype(self.scale.dtype)  # what is stored is what numbers are rounded by
        numbers = (np.rint(values / self._spread(scale)) + self._spread(zero)).clip(lowest, highest)
        shape = self.scale.shape if self.axis is None else (-1,)
        zeros = None if self.zero is None else zero.reshape(shape).astype(self.zero.dtype)
        return Integers(numbers.astype(self.numbers.dtype), scale.reshape(shape), zeros, self.axis)

    def in_steps(self, values: Array, scale: Array) -> "Integers":
        """Return numbers as integers without a zero point, in given steps: one for all, or one per number."""
        bounds = np.iinfo(self.numbers.dtype)
        numbers = np.rint(values / scale.astype(np.float64)).clip(bounds.min, bounds.max)
        zero = None if self.zero is None else np.zeros(scale.shape, self.zero.dtype)
        return Integers(numbers.astype(self.numbers.dtype), scale, zero, None if scale.size == 1 else 0)

    @property
    def parts(self) -> tuple[Array | None, ...]:
        """The tensors that a file holds: numbers, scale and zero point."""
        return self.numbers, self.scale, self.zero

    def _spread(self, part: Array) -> Array:
        rank = self.numbers.ndim
        return part.reshape(() if self.axis is None else [-1 if i == self.axis else 1 for i in range(rank)])


@dataclass(frozen=True, eq=False)
class Halves:
    """Floats of fewer bits than those that a model computes with."""

    numbers: Array
    dtype: np.dtype[Any]  # that a model computes with

    @property
    def are_sound(self) -> bool:
        """Whether these are floats of two bytes, and the model computes with float32."""
        return self.dtype == np.float32 and self.numbers.dtype.name in ("float16", "bfloat16")

    @property
    def values(self) -> Array:
        """The numbers as wider floats."""
        return self.numbers.astype(self.dtype)

    @property
    def parts(self) -> tuple[Array]:
        """The tensor that a file holds."""
        return (self.numbers,)

    def hold(self, values: Array) -> "Halves":
        """Return other numbers in as few bits; the largest that these bits hold in place of larger ones."""
        largest = largest_float(self.numbers.dtype)
        return Halves(values.clip(-largest, largest).astype(self.numbers.dtype), self.dtype)


def _no_zeros(scale: Array) -> Array:
    return np.where(scale > 0, scale, 1)


def read_integers(view: GraphView, names: Sequence[str], axis: int) -> Integers:
    """Return integers by their name and those of scale and zero point; several scales lie along an axis."""
    numbers, scale, *zero = (view.weight(name) for name in names if name)
    along = None if scale.size == 1 or not numbers.ndim else axis % numbers.ndim
    return Integers(numbers, scale, zero[0] if zero else None, along)


@dataclass(frozen=True, eq=False)
class Opened:
    """Numbers of few bits, and the nodes that computed with them, as they are in the file."""

    nodes: tuple[NodeProto, ...]
    names: tuple[str, ...]  # of the tensors that `stored` holds
    stored: Integers | Halves

    def put(self, view: GraphView, stored: Integers | Halves) -> list[str]:
        """Add numbers to a graph, under the names that these had where they are free; return the names."""
        pairs = zip(self.names, stored.parts, strict=False)
        return [_put(view, name, part) for name, part in pairs if part is not None]


@dataclass(frozen=True, eq=False)
class StoredNumbers:
    """Everything that a graph held in few bits, and holds as floats while it is folded."""

    blocks: Mapping[str, BlockWeight] = field(default_factory=dict)  # by the key of a plain product
    constants: Mapping[str, Opened] = field(default_factory=dict)  # by the weight that stands for them
    products: Mapping[str, Opened] = field(default_factory=dict)  # by the result of a plain product
    recurrent: Mapping[str, Sequence[Opened]] = field(default_factory=dict)  # by the key of a plain LSTM

    @property
    def nodes(self) -> list[NodeProto]:
        """The nodes that dequantised or multiplied weights, as they are in the file."""
        return [*(block.node for block in self.blocks.values()), *(held.nodes[-1] for held in self.integers)]

    @property
    def integers(self) -> list[Opened]:
        """Everything but blocks."""
        return [*self.constants.values(), *self.products.values(), *(w for ws in self.recurrent.values() for w in ws)]

    def store_again(self, view: GraphView) -> str:
        """Store numbers as before, in place; return a note on it."""
        kinds = {f"{block.kind.bits} bits in blocks of {block.kind.block_size}" for block in self.blocks.values()}
        kinds |= {f"{8 * held.stored.numbers.itemsize} bits" for held in self.integers}
        done = requantize_blocks(view, self.blocks) + self._close_products(view) + self._close_recurrent(view)
        # A bias takes its scale from the weight beside it.
        done += sum(self._close_constants(view, biases) for biases in (False, True))
        if self.integers:
            RemoveUnused()(view)
        return f"{done} weights of {' and '.join(sorted(kinds))} were folded as numbers, and are stored as before"

    def _close_products(self, view: GraphView) -> int:
        nodes: dict[str, list[NodeProto]] = {}
        dynamic: dict[str, list[str]] = {}
        for node in view.nodes:
            held = self.products.get(node_key(node))
            if held is not None and node.op_type in _PLAIN.values() and view.is_weight(node.input[1]):
                nodes[node_key(node)] = _integer_product(view, node, held, dynamic)
        view.expand(nodes)
        return len(nodes)

    def _close_recurrent(self, view: GraphView) -> int:
        made: list[NodeProto] = []
        for node in view.nodes:
            held = self.recurrent.get(node_key(node), ())
            if held and node.op_type == "LSTM" and all(view.is_weight(name) for name in node.input[1:3]):
                values = (view.weight(name).transpose(0, 2, 1) for name in node.input[1:3])
                pairs = zip(held, values, strict=True)
                (w, *w_steps), (r, *r_steps) = (part.put(view, part.stored.hold(v)) for part, v in pairs)
                none = [""] * (8 - len(node.input))
                inputs = [node.input[0], w, r, *node.input[3:], *none, *w_steps, *r_steps]
                size = {"hidden_size": view.weight(node.input[2]).shape[2]}
                made.append(rewritten(held[0].nodes[0], inputs=inputs, outputs=node.output, attributes=size))
        view.expand({node_key(node): [node] for node in made})
        return 2 * len(made)

    def _close_constants(self, view: GraphView, biases: bool) -> int:
        made = []
        for name, held in self.constants.items():
            if not view.is_weight(name) or not view.consumers(name):
                continue
            again: Integers | Halves | None = None
            if isinstance(held.stored, Integers) and held.stored.numbers.dtype == np.int32:
                again = _bias(view, name, held.stored) if biases else None
            elif not biases:
                again = held.stored.hold(view.weight(name))
            if again is not None:
                view.remove_weights([name])
                made.append(rewritten(held.nodes[0], inputs=held.put(view, again)))
        if made:
            view.replace_nodes([*made, *view.nodes])
        return len(made)


def dequantize(view: GraphView) -> StoredNumbers | None:
    """Put floats in the place of numbers of few bits, in place; None if there are none."""
    blocks = dequantize_blocks(view)
    constants = {node.output[0]: held for node in view.nodes if (held := _constant(view, node)) is not None}
    products = {node.output[0]: held for node in view.nodes if (held := _product(view, node)) is not None}
    recurrent = {node_key(node): both for node in view.nodes if (both := _recurrent(view, node))}
    stored = StoredNumbers(blocks, constants, products, recurrent)
    memory.require(4 * sum(held.stored.numbers.size for held in stored.integers), "the numbers of few bits, as floats,")
    nodes: dict[str, list[NodeProto]] = {name: [] for name in constants}
    for key, parts in recurrent.items():
        weights = [view.add_weight(f"{p.names[0]}_values", p.stored.values.transpose(0, 2, 1)) for p in parts]
        node = parts[0].nodes[0]
        nodes[key] = [rewritten(node, inputs=[node.input[0], *weights, *node.input[3:8]], op_type="LSTM")]
    for name, held in products.items():
        weight = view.add_weight(f"{held.names[0]}_values", held.stored.values)
        dynamic, product = held.nodes
        inputs, plain = [dynamic.input[0], weight], _PLAIN[product.op_type]
        nodes[name] = [rewritten(product, inputs=inputs, outputs=[name], op_type=plain)]
    if view.expand(nodes):
        view.put_weights({name: held.stored.values for name, held in constants.items()})
        view.rescaled = frozenset({*products, *recurrent})
        RemoveUnused()(view)
    return stored if blocks or stored.integers else None


def _constant(view: GraphView, node: NodeProto) -> Opened | None:
    if node.domain not in DEFAULT_DOMAINS or attr_int(node, "block_size", 0):
        return None
    if node.output[0] in view.output_names or not all(view.is_weight(name) for name in node.input):
        return None
    stored: Integers | Halves
    if node.op_type == "Cast":
        stored = Halves(view.weight(node.input[0]), helper.tensor_dtype_to_np_dtype(attr_int(node, "to", 0)))
    elif node.op_type == "DequantizeLinear":
        stored = read_integers(view, node.input, attr_int(node, "axis", 1))
    else:
        return None
    return Opened((node,), tuple(node.input), stored) if stored.are_sound else None


def _product(view: GraphView, node: NodeProto) -> Opened | None:
    try:
        match = find_match(view, node, _DYNAMIC, shared=False)
    except Mismatch:
        return None
    tensors, product = match.tensors, next(n for n in match.nodes if n.op_type in _PLAIN)
    dynamic = view.producer(tensors["numbers"])
    if dynamic is None or list(dynamic.output) != [tensors[name] for name in ("numbers", "x_scale", "x_zero")]:
        return None
    names = tuple(tensors[name] for name in ("weight", "scale", "zero") if name in tensors)
    if not all(view.is_weight(name) for name in names):
        return None
    integers = read_integers(view, names, -1)
    # A scale per column belongs to a matrix.
    is_known = integers.axis is None or (product.op_type == "MatMulInteger" and integers.scale.ndim == 1)
    return Opened((dynamic, product), names, integers) if is_known and integers.are_sound else None


def _recurrent(view: GraphView, node: NodeProto) -> list[Opened]:
    """Return both weights of an LSTM of integers, with one scale or one per direction; nothing for other nodes."""
    if node.op_type != "DynamicQuantizeLSTM":
        return []
    names = [tuple(node.input[i] for i in positions if i < len(node.input)) for positions in _LSTM_PARTS]
    if not all(len(part) == 3 and all(view.is_weight(name) for name in part) for part in names):
        return []
    opened = [Opened((node,), part, read_integers(view, part, 0)) for part in names]
    return opened if all(part.stored.are_sound for part in opened) else []


def _integer_product(view: GraphView, node: NodeProto, held: Opened, dynamic: dict[str, list[str]]) -> list[NodeProto]:
    """Return the nodes of an integer product; products that read the same share what quantises it."""
    x, weight, *bias = filter(None, node.input)
    nodes, result = [], node.output[0]
    if x not in dynamic:
        dynamic[x] = [view.fresh_name(f"{x}_{end}") for end in ("quantized", "scale", "zero_point")]
        nodes.append(helper.make_node("DynamicQuantizeLinear", [x], dynamic[x], f"{x}_QuantizeLinear"))
    numbers, scale, zero = dynamic[x]
    stored, *rest = held.put(view, held.stored.hold(view.weight(weight)))
    total, wide, both = (view.fresh_name(f"{result}_{end}") for end in ("integers", "sums", "scales"))
    inputs = [numbers, stored, zero, *rest[1:]]
    product = rewritten(node, inputs=inputs, outputs=[total], op_type=held.nodes[1].op_type)
    scaled = view.fresh_name(f"{result}_unbiased") if bias else result
    nodes += [
        helper.make_node("Mul", [scale, rest[0]], [both]),
        product,
        helper.make_node("Cast", [total], [wide], to=TensorProto.FLOAT),
        helper.make_node("Mul", [wide, both], [scaled]),
    ]
    if bias:
        shape = (1, -1, *(1,) * (view.weight(weight).ndim - 2))
        added = view.add_weight(bias[0], view.weight(bias[0]).reshape(shape))
        nodes.append(helper.make_node("Add", [scaled, added], [result]))
    return nodes


def _bias(view: GraphView, name: str, integers: Integers) -> Integers | None:
    """Return a bias in steps of the scales of what its only reader multiplies; None where these are no integers."""
    reader = only_reader(view, name)
    sources = [] if reader is None else [view.producer(tensor) for tensor in reader.input[:2]]
    if len(sources) < 2 or any(node is None or node.op_type != "DequantizeLinear" for node in sources):
        return None
    x, weight = (view.weight(node.input[1]) for node in sources if node is not None)
    if x.size > 1:
        return None
    return integers.in_steps(view.weight(name), (x.reshape(()) * weight).reshape(weight.shape))


def _put(view: GraphView, name: str, values: Array) -> str:
    """Return the name of a weight with such values: this one, or a fresh one where others have it."""
    if view.is_weight(name) and np.array_equal(view.weight(name), values):
        return name
    return view.add_weight(name, values)
