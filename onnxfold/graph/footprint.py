"""Memory of a network's activations, counted from shapes before a run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from onnx import GraphProto, NodeProto, helper

from onnxfold.graph.nodes import captured_names, subgraphs
from onnxfold.graph.shape_inference import infer_types
from onnxfold.graph.tensor_types import TensorType
from onnxfold.graph.tensors import Array
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
    """Memory of a network's activations.

    Parameters
    ----------
    peak : int
        Most bytes that are needed at one time.
    largest : str
        Name of the largest tensor.
    unknown : str
        An operator whose result may have any size; '' if no operator does.
    """

    peak: int
    largest: str
    unknown: str

    @classmethod
    def of(cls, view: GraphView, shapes: Mapping[str, Sequence[int]]) -> "Footprint":
        """Count a graph for inputs of given shapes; free dimensions that they leave count as one."""
        known = {name: view.shape(name) for name in view.input_names}
        closed = {name: [d or 1 for d in shape] for name, shape in known.items() if shape is not None}
        types = infer_types(view.model, view.weights, {**closed, **view.input_shapes, **shapes}, view.learned)
        sizes: dict[str, int] = {}
        for name in view.input_names:
            sizes[name] = tensor_bytes(types.get(name), open_dimension=1) or 0
        nodes = view.nodes
        outputs = set(view.output_names)
        last = {name: i for i, node in enumerate(nodes) for name in _reads(node)}
        unknown, live, peak = "", sum(sizes.values()), sum(sizes.values())
        for i, node in enumerate(nodes):
            read = [name for name in _reads(node) if name in sizes]
            for name in filter(None, node.output):
                found = tensor_bytes(types.get(name))
                if found is None:
                    grows = any(n.op_type in GROWING for n in _inner(node))
                    unknown = unknown or (node.op_type if grows else "")
                    # Not their sum: sizes of a stream that blocks add to would double with every block.
                    found = max((sizes[n] for n in read), default=0)
                sizes[name] = found
                live += found
            peak = max(peak, live)
            for name in {*read, *node.output}:
                if name in sizes and last.get(name, -1) <= i and name not in outputs:
                    live -= sizes[name]
        largest = max(sizes, key=lambda name: sizes[name], default="")
        return cls(peak, largest, unknown)

    def require(self, what: str, times: float = 1) -> None:
        """Refuse what holds the activations so many times, if that is more than the memory limit.

        Raises
        ------
        MemoryLimitError
            If it is.
        """
        memory.require(int(self.peak * times), f"{what} (largest tensor: '{self.largest}')", memory.SMALLER)


def feed_shapes(feeds: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of inputs."""
    return {name: tuple(values.shape) for name, values in feeds.items()}


def tensor_bytes(found: TensorType | None, open_dimension: int | None = None) -> int | None:
    """Return what a tensor takes, None where a dimension is not known; `open_dimension` stands in for such ones."""
    if found is None:
        return None
    elem_type, shape, _ = found
    dims = [open_dimension if d is None else d for d in shape]
    if any(d is None for d in dims):
        return None
    item = helper.tensor_dtype_to_np_dtype(elem_type).itemsize if elem_type else _UNKNOWN_BYTES
    return prod((d for d in dims if d is not None), start=item)


def _reads(node: NodeProto) -> list[str]:
    return [name for name in dict.fromkeys([*node.input, *captured_names(node)]) if name]


def _inner(node: NodeProto) -> Iterator[NodeProto]:
    """Yield a node and those of its bodies."""
    yield node
    for body in subgraphs(node):
        yield from _nodes(body)


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield from _inner(node)
