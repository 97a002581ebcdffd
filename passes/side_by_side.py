"""Original and folded network, run side by side node by node over batches of inputs."""

from collections.abc import Iterator

from onnx import NodeProto

from onnxfold.channels.declarations import Axis
from onnxfold.cluster.plan import FoldPlan
from onnxfold.graph.view import GraphView, node_key
from onnxfold.passes.axis_map import AxisMap, axis_map
from onnxfold.statistics.activations import Activations, Batches


class SideBySide:
    """Both networks' activations, and how their axes correspond.

    Parameters
    ----------
    reference, folded : GraphView
        The network before and after the fold.
    plan : FoldPlan
        The fold.
    inputs : list of dict
        Batches of inputs.
    """

    def __init__(self, reference: GraphView, folded: GraphView, plan: FoldPlan, inputs: Batches) -> None:
        self.plan = plan
        self.reference = Activations(reference, inputs)
        self.folded = Activations(folded, inputs)
        self._maps: dict[tuple[str, int], AxisMap | None] = {}

    def pairs(self) -> Iterator[tuple[NodeProto, NodeProto]]:
        """Yield corresponding nodes: a fold changes weights and numbers, never the nodes or their results' names."""
        by_output = {node_key(node): node for node in self.folded.view.nodes}
        for node in self.reference.view.nodes:
            yield node, by_output[node_key(node)]

    def map(self, tensor: str, axis: int) -> AxisMap | None:
        """Return the fold of an activation's axis; None where its groups do not line up."""
        key = (tensor, axis)
        if key not in self._maps:
            width = self.reference.values[tensor][0].shape[axis]
            self._maps[key] = axis_map(self.plan, Axis(tensor, axis), width)
        return self._maps[key]
