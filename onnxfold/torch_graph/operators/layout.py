"""Constants, shapes and types, and operators that move elements and compute nothing."""

import math

import numpy as np
import torch
from onnx import TensorProto, numpy_helper
from torch import Tensor

from onnxfold.graph.tensors import constant_value, loaded
from onnxfold.torch_graph.registry import Operation, TorchNode, operation, operations, operator, tensor_type, to_tensor


@operator("Constant")
def constant(node: TorchNode) -> Operation:
    """A literal value."""
    value = constant_value(node.node)
    if value is None:
        raise node.unsupported("its value is a string or sparse")
    tensor = to_tensor(loaded(value))
    return lambda: tensor


@operator("ConstantOfShape")
def constant_of_shape(node: TorchNode) -> Operation:
    """One value everywhere."""
    value = node.value("value")
    values = numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.zeros(1, np.float32)
    fill = to_tensor(values).reshape(())
    return lambda shape: fill.to(shape.device).expand(shape.tolist())


@operator("Cast")
def cast(node: TorchNode) -> Operation:
    """To another type; every float type is the one that the graph computes in."""
    target = node.integer("to", TensorProto.FLOAT)
    kind = tensor_type(target)
    if kind is None:
        raise node.unsupported(f"the type {TensorProto.DataType.Name(target)} has no counterpart in torch")
    return lambda x: x.to(kind)


@operator("Identity", "Dropout")
def identity(node: TorchNode) -> Operation:
    """The input; at inference, Dropout drops nothing."""
    training = node.constant(2)
    if node.op_type == "Dropout" and node.has_input(2) and (training is None or bool(training.reshape(-1)[0])):
        raise node.unsupported("it is in training mode; export the model in evaluation mode")
    return lambda x, *_: (x, torch.ones_like(x, dtype=torch.bool)) if node.has_output(1) else x


@operation("Flatten")
def flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    """A matrix: the axes before `axis`, and those from it on."""
    rows = math.prod(x.shape[:axis])
    return x.reshape(rows, x.numel() // rows if rows else -1)


@operation("Squeeze")
def squeeze(x: Tensor, chosen: Tensor | None = None, *, axes: tuple[int, ...] = ()) -> Tensor:
    """Without axes of length 1."""
    some = tuple(axes if chosen is None else chosen.tolist())
    return x.squeeze(some) if some else x.squeeze()


@operation("Unsqueeze")
def unsqueeze(x: Tensor, chosen: Tensor | None = None, *, axes: tuple[int, ...] = ()) -> Tensor:
    """With more axes of length 1; places are counted in the result."""
    new = axes if chosen is None else chosen.reshape(-1).tolist()
    for axis in sorted(a % (x.ndim + len(new)) for a in new):
        x = x.unsqueeze(axis)
    return x


@operator("Split")
def split(node: TorchNode) -> Operation:
    """Parts along an axis, of given lengths or as equal as possible."""
    axis, fixed = node.integer("axis", 0), node.integers("split")
    count = node.integer("num_outputs", len(node.outputs))

    def run(x: Tensor, sizes: Tensor | None = None) -> tuple[Tensor, ...]:
        lengths = fixed if sizes is None else sizes.tolist()
        if not lengths:
            size = -(-x.shape[axis] // count)
            lengths = [min(size, x.shape[axis] - i * size) for i in range(count)]
        return torch.functional.split(x, lengths, axis)

    return run


@operation("DepthToSpace")
def depth_to_space(x: Tensor, *, blocksize: int = 1, mode: str = "DCR") -> Tensor:
    """Channels become blocks of positions, in either order of channels and blocks."""
    if mode == "DCR":
        x = x.reshape(len(x), blocksize**2, -1, *x.shape[2:]).transpose(1, 2).flatten(1, 2)
    return torch.pixel_shuffle(x, blocksize)


@operation("SpaceToDepth")
def space_to_depth(x: Tensor, *, blocksize: int = 1) -> Tensor:
    """Blocks of positions become channels."""
    y = torch.pixel_unshuffle(x, blocksize)
    return y.reshape(len(y), -1, blocksize**2, *y.shape[2:]).transpose(1, 2).flatten(1, 2)


operations({
    # 0 keeps a length, and -1 is what is left.
    "Reshape": lambda x, shape, *, allowzero=False: (
        x.reshape([x.shape[i] if s == 0 and not allowzero else s for i, s in enumerate(shape.tolist())])
    ),
    "Expand": lambda x, shape: x.expand(torch.broadcast_shapes(x.shape, shape.tolist())),  # type: ignore[no-untyped-call]
    "Shape": lambda x, *, start=0, end=2**31: (
        torch.tensor(list(x.shape)[start:end], dtype=torch.int64, device=x.device)
    ),
    "Range": lambda start, limit, delta: (
        torch.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype, device=start.device)
    ),
    "Concat": lambda *parts, axis=1: torch.cat(parts, axis),
    "Transpose": lambda x, *, perm=(): x.permute(tuple(perm) or tuple(range(x.ndim))[::-1]),
    "Size": lambda x: torch.tensor(x.numel(), device=x.device),
    "CastLike": lambda x, other: x.to(other.dtype),
    # The upper or lower triangle of matrices, zero elsewhere.
    "Trilu": lambda x, k=None, *, upper=True: (torch.triu if upper else torch.tril)(x, 0 if k is None else int(k)),
})  # fmt: skip
operations({"Tile": lambda x, repeats: x.repeat(repeats.tolist())}, since=6)
