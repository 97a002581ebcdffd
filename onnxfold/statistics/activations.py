"""A network run node by node over batches of inputs."""

from collections import Counter

from onnx import NodeProto

from onnxfold.graph.node_runner import NodeRunner, NodeSessions
from onnxfold.graph.nodes import captured_names
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView

#: One dict of inputs per batch.
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
        self._batches = len(inputs)
        self.sessions = NodeSessions(view)
        self._readers = Counter(n for node in view.nodes for n in reads(node))

    def run(self, node: NodeProto) -> None:
        """Run a node on every batch."""
        runner = NodeRunner(self.view, node, self.sessions)
        results = [runner.run({n: self.values[n][b] for n in runner.inputs}) for b in range(self._batches)]
        for name in results[0]:
            self.values[name] = [result[name] for result in results]

    def release(self, node: NodeProto) -> None:
        """Forget what nobody reads after this node."""
        for name in reads(node):
            self._readers[name] -= 1
        for name in [*reads(node), *node.output]:
            if self._readers[name] <= 0:
                self.values.pop(name, None)


def reads(node: NodeProto) -> list[str]:
    """Return the tensors that a node reads, those inside its bodies included, each once."""
    return [n for n in dict.fromkeys([*node.input, *captured_names(node)]) if n]
