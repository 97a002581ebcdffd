"""Operators that move elements and compute nothing."""

import math

import torch
from torch import Tensor

from onnxfold.torch_graph.node import TorchNode
from onnxfold.torch_graph.registry import Operation, operator


@operator("Identity", "Dropout")
def identity(node: TorchNode) -> Operation:
    """The input; at inference, Dropout drops nothing."""
    training = node.constant(2)
    if node.op_type == "Dropout" and node.has_input(2) and (training is None or bool(training.reshape(-1)[0])):
        raise node.unsupported("it is in training mode; export the model in evaluation mode")
    return lambda x, *_: (x, torch.ones_like(x, dtype=torch.bool)) if node.has_output(1) else x


@operator("Reshape")
def reshape(node: TorchNode) -> Operation:
    """Other axes in the same order; 0 keeps a length and -1 is what is left."""
    literal_zero = bool(node.integer("allowzero", 0))

    def run(x: Tensor, shape: Tensor) -> Tensor:
        target = [int(s) for s in shape.tolist()]
        return x.reshape(tuple(x.shape[i] if s == 0 and not literal_zero else s for i, s in enumerate(target)))

    return run


@operator("Flatten")
def flatten(node: TorchNode) -> Operation:
    """A matrix: the axes before `axis`, and those from it on."""
    axis = node.integer("axis", 1)

    def run(x: Tensor) -> Tensor:
        rows = math.prod(x.shape[: axis if axis >= 0 else x.ndim + axis])
        return x.reshape(rows, x.numel() // rows if rows else -1)

    return run


@operator("Squeeze")
def squeeze(node: TorchNode) -> Operation:
    """Without axes of length 1."""
    fixed = node.integers("axes")

    def run(x: Tensor, axes: Tensor | None = None) -> Tensor:
        chosen = fixed if axes is None else [int(a) for a in axes.tolist()]
        return x.squeeze(tuple(chosen)) if chosen else x.squeeze()

    return run


@operator("Unsqueeze")
def unsqueeze(node: TorchNode) -> Operation:
    """With more axes of length 1; places are counted in the result."""
    fixed = node.integers("axes")

    def run(x: Tensor, axes: Tensor | None = None) -> Tensor:
        chosen = fixed if axes is None else [int(a) for a in axes.reshape(-1).tolist()]
        for axis in sorted(a % (x.ndim + len(chosen)) for a in chosen):
            x = x.unsqueeze(axis)
        return x

    return run


@operator("Transpose")
def transpose(node: TorchNode) -> Operation:
    """Axes in another order, by default reversed."""
    order = node.integers("perm")
    return lambda x: x.permute(order or list(range(x.ndim))[::-1])


@operator("Concat")
def concat(node: TorchNode) -> Operation:
    """One after the other along an axis."""
    axis = node.integer("axis", 1)
    return lambda *parts: torch.cat(parts, axis)


@operator("Split")
def split(node: TorchNode) -> Operation:
    """Parts along an axis, of given lengths or as equal as possible."""
    axis, fixed = node.integer("axis", 0), node.integers("split")
    count = node.integer("num_outputs", len(node.outputs))

    def run(x: Tensor, sizes: Tensor | None = None) -> tuple[Tensor, ...]:
        lengths = fixed if sizes is None else [int(s) for s in sizes.tolist()]
        if not lengths:
            size = -(-x.shape[axis] // count)
            lengths = [min(size, x.shape[axis] - i * size) for i in range(count)]
        return torch.functional.split(x, lengths, axis)

    return run


@operator("Expand")
def expand(node: TorchNode) -> Operation:
    """Broadcast with a shape."""

    def run(x: Tensor, shape: Tensor) -> Tensor:
        target = [int(s) for s in shape.tolist()]
        padded = [1] * (x.ndim - len(target)) + target
        lengths = [1] * (len(padded) - x.ndim) + list(x.shape)
        return x.expand([a if b == 1 else b for a, b in zip(lengths, padded, strict=True)])

    return run


@operator("Tile", since=6)
def tile(node: TorchNode) -> Operation:
    """Whole copies along the axes."""
    return lambda x, repeats: x.repeat([int(r) for r in repeats.tolist()])


@operator("DepthToSpace")
def depth_to_space(node: TorchNode) -> Operation:
    """Channels become blocks of positions, in either order of channels and blocks."""
    size, by_column = node.integer("blocksize", 1), node.text("mode", "DCR") == "CRD"

    def run(x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        if by_column:
            parts = x.reshape(n, c // size**2, size, size, h, w).permute(0, 1, 4, 2, 5, 3)
        else:
            parts = x.reshape(n, size, size, c // size**2, h, w).permute(0, 3, 4, 1, 5, 2)
        return parts.reshape(n, c // size**2, h * size, w * size)

    return run


@operator("SpaceToDepth")
def space_to_depth(node: TorchNode) -> Operation:
    """Blocks of positions become channels."""
    size = node.integer("blocksize", 1)

    def run(x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        parts = x.reshape(n, c, h // size, size, w // size, size).permute(0, 3, 5, 1, 2, 4)
        return parts.reshape(n, c * size**2, h // size, w // size)

    return run


@operator("Trilu")
def triangle(node: TorchNode) -> Operation:
    """Upper or lower triangle of matrices, zero elsewhere."""
    function = torch.triu if node.integer("upper", 1) else torch.tril
    return lambda x, k=None: function(x, 0 if k is None else int(k))
