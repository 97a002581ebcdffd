"""Original and folded network, run side by side node by node over batches of inputs."""

from collections import Counter
from collections.abc import Iterator

from onnx import NodeProto

from onnxfold.graph.node_runner import NodeRunner
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView, captured_names

Batches = list[dict[str, Array]]


class Activations:
    """The activations of one network that later nodes still need, as lists of batches.

    Parameters
    ----------
    view : GraphView
        The network.
    inputs : list of dict
        One dict of inputs per batch.
    """

    def __init__(self, view: GraphView, inputs: Batches) -> None:
        self.view = view
        self.values: dict[str, list[Array]] = {name: [b[name] for b in inputs] for name in inputs[0]}
        self._readers = Counter(n for node in view.nodes for n in _reads(node))

    def run(self, node: NodeProto, weights: dict[str, Array] | None = None) -> None:
        """Run a node on every batch."""
        runner = NodeRunner(self.view, node, weights)
        count = len(next(iter(self.values.values())))
        results = [runner.run({n: self.values[n][b] for n in runner.inputs}) for b in range(count)]
        for name in results[0]:
            self.values[name] = [result[name] for result in results]

    def release(self, node: NodeProto) -> None:
        """Forget what nobody reads after this node."""
        for name in _reads(node):
            self._readers[name] -= 1
        for name in [*_reads(node), *node.output]:
            if self._readers[name] <= 0:
                self.values.pop(name, None)


def _reads(node: NodeProto) -> list[str]:
    return [n for n in dict.fromkeys([*node.input, *captured_names(node)]) if n]


def pairs(original: GraphView, folded: GraphView) -> Iterator[tuple[NodeProto, NodeProto]]:
    """Yield corresponding nodes: a fold changes weights and numbers, never the nodes or their results' names."""
    by_output = {node.output[0]: node for node in folded.nodes}
    for node in original.nodes:
        yield node, by_output[node.output[0]]
