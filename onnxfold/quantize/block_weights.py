"""Products with weights of few bits (MatMulNBits), folded as plain products and stored in few bits again.

A fold removes rows and columns of a weight, and changes the numbers of the columns that are left. So a weight is
dequantised when the model is opened, folded like any other, and quantised again when the model is written: in blocks of
the same size, with zero points where it had them. A weight that the fold did not touch keeps its bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto, helper

from onnxfold.graph.nodes import attr_int, node_key, rewritten
from onnxfold.graph.patterns import multiplies_weight
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.machine import memory

Bytes = npt.NDArray[np.uint8]
Rows = npt.NDArray[np.float32]


@dataclass(frozen=True)
class BlockFormat:
    """How whole numbers of 2, 4 or 8 bits are stored in blocks along a row, as MatMulNBits holds them.

    Row n of a weight of shape (N, K) is cut into blocks. A block has a scale s and a zero point z, and its numbers
    stand for (q - z) s. Several numbers lie in a byte, the first one in its lowest bits. The last block of a row is
    filled up.
    """

    bits: int
    block_size: int  # numbers that share a scale
    has_zero_points: bool  # whether blocks have a zero point of their own; else it is the middle of the range

    @property
    def middle(self) -> int:
        """The zero point where none is stored."""
        return 1 << (self.bits - 1)


def unpack_numbers(packed: Bytes, bits: int, count: int) -> Bytes:
    """Return numbers of shape (..., count) from bytes along the last axis."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return numbers.reshape(*packed.shape[:-1], -1)[..., :count].astype(np.uint8)


def pack_numbers(numbers: Bytes, bits: int) -> Bytes:
    """Return bytes that hold numbers along the last axis; the rest of the last byte is zero."""
    lowest = np.unpackbits(numbers[..., None], axis=-1, count=bits, bitorder="little")
    return np.packbits(lowest.reshape(*numbers.shape[:-1], -1), axis=-1, bitorder="little")


def dequantized_rows(weight: Bytes, scales: Array, zero_points: Bytes | None, kind: BlockFormat, columns: int) -> Rows:
    """Return the weights that stored numbers stand for, shape (N, K)."""
    rows, blocks = weight.shape[:2]
    numbers = unpack_numbers(weight, kind.bits, kind.block_size).astype(np.float32)
    if zero_points is None:
        numbers -= np.float32(kind.middle)
    else:
        numbers -= unpack_numbers(zero_points.reshape(rows, -1), kind.bits, blocks)[..., None].astype(np.float32)
    numbers *= scales.reshape(rows, blocks, 1).astype(np.float32)
    return np.ascontiguousarray(numbers.reshape(rows, -1)[:, :columns])


def quantized_rows(
    rows: Rows, kind: BlockFormat, scale_type: np.dtype[np.generic]
) -> tuple[Bytes, Array, Bytes | None]:
    """Return numbers, scales and zero points that stand for about some rows, as onnxruntime's quantiser has them.

    Without zero points, the largest number of a block becomes the lowest one of the range, so that what such numbers
    stand for gives the same numbers again. With them, the range is that of the block and zero.
    """
    count, columns = rows.shape
    filled = np.pad(rows.astype(np.float32, copy=False), ((0, 0), (0, -columns % kind.block_size)))
    blocks = filled.reshape(count, -1, kind.block_size)
    most = (1 << kind.bits) - 1
    if kind.has_zero_points:
        low, high = np.minimum(blocks.min(axis=-1), 0.0), np.maximum(blocks.max(axis=-1), 0.0)
        scales = ((high - low) / most).astype(scale_type)
        zeros = np.rint(np.clip(-low * _inverse(scales), 0.0, most))
    else:
        peak = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=-1)[..., None], axis=-1)[..., 0]
        scales = (peak / -kind.middle).astype(scale_type)
        zeros = np.full(scales.shape, float(kind.middle))
    numbers = np.rint(blocks * _inverse(scales)[..., None] + zeros[..., None]).clip(0, most).astype(np.uint8)
    stored = pack_numbers(zeros.astype(np.uint8), kind.bits) if kind.has_zero_points else None
    return pack_numbers(numbers, kind.bits), scales, stored


def _inverse(scales: Array) -> Rows:
    wide = scales.astype(np.float32)
    factors: Rows = np.divide(1.0, wide, out=np.zeros_like(wide), where=wide != 0.0)
    return factors


_DOMAIN = "com.microsoft"
_BITS = (2, 4, 8)
#: Inputs.
_WEIGHT, _SCALES, _ZERO_POINTS, _ORDER, _BIAS = range(1, 6)


@dataclass(frozen=True, eq=False)
class BlockWeight:
    """A weight of few bits, and the values that it was opened as."""

    node: NodeProto  # the product, as it is in the file
    kind: BlockFormat
    stored: dict[str, Array]
    values: Array


def dequantize_blocks(view: GraphView) -> dict[str, BlockWeight]:
    """Put plain products in the place of those with weights of few bits; return these weights, by the products' keys.

    Weights with an order of their own (``g_idx``), those that were packed for a processor, and those that are not
    constant or read elsewhere stay, and block what they touch.
    """
    plain = [(node, kind) for node in view.nodes if (kind := _format(view, node)) is not None]
    needed = sum(4 * attr_int(node, "K", 0) * attr_int(node, "N", 0) for node, _ in plain)
    memory.require(needed, "the weights of few bits, as numbers,")
    opened = {node_key(node): _open_weight(view, node, kind) for node, kind in plain}
    view.expand({key: products for key, (_, products) in opened.items()})
    view.remove_weights({name for block, _ in opened.values() for name in block.stored})
    return {node_key(products[0]): block for block, products in opened.values()}


def requantize_blocks(view: GraphView, blocks: Mapping[str, BlockWeight]) -> int:
    """Put products with weights of few bits in the place of plain ones again, in place; return how many."""
    replaced: dict[str, NodeProto] = {}
    plain: list[str] = []
    for node in view.nodes:
        block = blocks.get(node_key(node))
        if block is None or not multiplies_weight(view, node):
            continue
        name = node.input[1]
        values = view.weight(name)
        tensors = block.stored if np.array_equal(values, block.values) else _quantize_block(block, values)
        inputs = [node.input[0], *(view.add_weight(stem, tensor) for stem, tensor in tensors.items())]
        sizes = {"K": values.shape[0], "N": values.shape[1]}
        replaced[node_key(node)] = rewritten(block.node, inputs=inputs, outputs=list(node.output), attributes=sizes)
        plain.append(name)
    view.substitute(replaced)
    view.remove_weights({name for name in plain if not view.consumers(name)})
    return len(replaced)


def _format(view: GraphView, node: NodeProto) -> BlockFormat | None:
    """Return the format of a product's weight that can be opened; None of all others."""
    if node.op_type != "MatMulNBits" or node.domain != _DOMAIN or attr_int(node, "weight_prepacked", 0):
        return None
    inputs = [*node.input, *[""] * 6][:6]
    kind = BlockFormat(attr_int(node, "bits", 4), attr_int(node, "block_size", 0), bool(inputs[_ZERO_POINTS]))
    rows, blocks = attr_int(node, "N", 0), -(-attr_int(node, "K", 0) // max(kind.block_size, 1))
    is_known = (
        kind.bits in _BITS
        and not inputs[_ORDER]
        and all(view.is_weight(name) and len(view.consumers(name)) == 1 for name in inputs[_WEIGHT:_ORDER] if name)
        and tuple(view.weights[inputs[_WEIGHT]].shape) == (rows, blocks, kind.block_size * kind.bits // 8)
        and view.weight_size(inputs[_SCALES]) == rows * blocks
        and (not kind.has_zero_points or view.weight_type(inputs[_ZERO_POINTS]) == TensorProto.UINT8)
    )
    return kind if is_known else None


def _open_weight(view: GraphView, node: NodeProto, kind: BlockFormat) -> tuple[BlockWeight, list[NodeProto]]:
    """Return a weight, and the plain product that stands for it, with its bias."""
    stored = {name: view.weight(name) for name in node.input[_WEIGHT:_ORDER] if name}
    numbers, scales, *zeros = stored.values()
    rows = dequantized_rows(numbers, scales, zeros[0] if zeros else None, kind, attr_int(node, "K", 0))
    values = np.ascontiguousarray(rows.T).astype(scales.dtype)
    bias = node.input[_BIAS] if len(node.input) > _BIAS else ""
    name = view.add_weight(f"{node.input[_WEIGHT]}_values", values)
    result = f"{node.output[0]}_unbiased" if bias else node.output[0]
    product = helper.make_node("MatMul", [node.input[0], name], [result], node.name)
    block = BlockWeight(node, kind, stored, values)
    if not bias:
        return block, [product]
    return block, [product, helper.make_node("Add", [result, bias], node.output, f"{node.name}_bias")]


def _quantize_block(block: BlockWeight, values: Array) -> dict[str, Array]:
    _, old_scales, *_ = block.stored.values()
    parts = quantized_rows(np.asarray(values.T, np.float32), block.kind, old_scales.dtype)
    pairs = zip(block.stored.items(), parts, strict=False)
    return {name: new if old.ndim > 1 else new.reshape(-1) for (name, old), new in pairs if new is not None}
