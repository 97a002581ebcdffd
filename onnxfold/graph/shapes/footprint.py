"""Memory of a network's activations, counted from shapes before a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from operator import add

from onnx import NodeProto, helper

from onnxfold.graph.nodes import all_nodes, reached_nodes, read_names
from onnxfold.graph.tensors import Array, TensorType
from onnxfold.graph.view import GraphView
from onnxfold.machine import memory

#: Operators whose result may be larger than the largest tensor that they read; of others that one says enough where
#: shapes do not.
GROWING = frozenset({
    "CenterCropPad", "Compress", "Concat", "ConstantOfShape", "ConvTranspose", "Einsum", "Expand", "EyeLike", "Gather",
    "GatherElements", "GatherND", "Loop", "MatMul", "MaxUnpool", "OneHot", "Pad", "RandomNormal", "RandomUniform",
    "Range", "Resize", "Scan", "STFT", "Tile", "Upsample",
})  # fmt: skip
_UNKNOWN_BYTES = 4


@dataclass(frozen=True)
class Footprint:
    """Memory of a network's activations."""

    peak: int  # most bytes that are needed at one time
    constant: int  # of them, most that do not grow with the samples: what is computed of weights alone
    growing: int
    largest: str  # name of the largest tensor
    unknown: str  # an operator whose result may have any size; '' if no operator does

    @classmethod
    def of(cls, view: GraphView, shapes: Mapping[str, Sequence[int]], *, walked: bool = False) -> Footprint:
        """Count a graph for inputs of given shapes; free dimensions that they leave count as one."""
        known = {name: view.shape(name) for name in view.input_names}
        closed = {name: [d or 1 for d in shape] for name, shape in known.items() if shape is not None}
        types = view.types_for({**closed, **shapes})
        sizes = {name: tensor_bytes(types.get(name), open_dimension=1) or 0 for name in view.input_names}
        # All others are computed of weights alone.
        sampled = set(view.input_names).union(*(node.output for node in reached_nodes(view.nodes, view.input_names)))
        unknown = ""
        # The numbers of the nodes that write tensors, and of those that read them last.
        written = dict.fromkeys(sizes, 0)
        read = {name: i for i, node in enumerate(view.nodes) for name in read_names(node)}
        read |= {} if walked else dict.fromkeys(view.output_names, len(view.nodes))
        nodes = view.nodes[: _last_layer(view, sampled)] if walked else view.nodes
        for i, node in enumerate(nodes):
            # Not their sum: sizes of a stream that blocks add to would double with every block.
            largest_read = max((sizes[name] for name in read_names(node) if name in sizes), default=0)
            for name in filter(None, node.output):
                size = tensor_bytes(types.get(name))
                if size is None and any(n.op_type in GROWING for n in all_nodes([node])):
                    unknown = unknown or node.op_type
                sizes[name], written[name] = largest_read if size is None else size, i
        changes = [[0] * (len(nodes) + 2) for _ in range(2)]  # of the bytes held while nodes run: constant, growing
        for name, start in written.items():
            # An input that nothing reads stays.
            stop = read.get(name, start if name not in view.input_names else len(nodes))
            changes[name in sampled][start] += sizes[name]
            changes[name in sampled][min(max(stop, start), len(nodes)) + 1] -= sizes[name]
        constant, growing = (list(accumulate(change))[: len(nodes)] for change in changes)
        peak, fixed, sampled_peak = (max(b, default=0) for b in (map(add, constant, growing), constant, growing))
        return cls(peak, fixed, sampled_peak, max(sizes, key=lambda name: sizes[name], default=""), unknown)

    def require(self, what: str, times: float = 1, networks: int = 1) -> None:
        """Refuse the activations of so many networks on so many times the samples, if they take more than the limit."""
        needed = self.peak if times == 1 else self.constant + self.growing * times
        memory.require(int(needed * networks), f"{what} (largest tensor: '{self.largest}')", memory.SMALLER)

    def count_fitting(self, networks: int, most: int, least: int = 1) -> int:
        """Return how many times the samples fit into a limit, in bytes; every time, `least` bytes at least are held."""
        return max(most - networks * self.constant, 0) // max(networks * self.growing, least, 1)


def _last_layer(view: GraphView, sampled: set[str]) -> int | None:
    """Return the place of the last node that reads a matrix of weights, and activations; None where there is none."""

    def is_layer(node: NodeProto) -> bool:
        read = set(read_names(node))
        return not sampled.isdisjoint(read) and any(len(view.shape(name) or ()) > 1 for name in read - sampled)

    return max((i for i, node in enumerate(view.nodes) if is_layer(node)), default=None)


def feed_shapes(feeds: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of inputs."""
    return {name: tuple(values.shape) for name, values in feeds.items()}


def tensor_bytes(kind: TensorType | None, open_dimension: int | None = None) -> int | None:
    """Return the bytes of a tensor, None where a dimension is not known; `open_dimension` stands in for such ones."""
    if kind is None:
        return None
    elem_type, shape, _ = kind
    dims = [open_dimension if d is None else d for d in shape]
    if any(d is None for d in dims):
        return None
    item = helper.tensor_dtype_to_np_dtype(elem_type).itemsize if elem_type else _UNKNOWN_BYTES
    return prod((d for d in dims if d is not None), start=item)
