"""Single operators in onnxruntime, for walks that look at, or change, a network between its nodes."""

import numpy as np
import onnxruntime as ort
from onnx import NodeProto, helper

from onnxfold.errors import VerificationError
from onnxfold.graph.session import session_options
from onnxfold.graph.tensors import Array, elem_type_of, to_proto
from onnxfold.graph.view import GraphView, captured_names


class NodeRunner:
    """Runs one node of a graph on batches of inputs; weights come from the graph.

    Parameters
    ----------
    view : GraphView
        The graph that the node belongs to.
    node : NodeProto
        The node.
    weights : dict of str to ndarray, optional
        Values to use instead of the graph's.
    """

    def __init__(self, view: GraphView, node: NodeProto, weights: dict[str, Array] | None = None) -> None:
        self._view = view
        self._node = node
        self._given = weights or {}
        self._session: ort.InferenceSession | None = None
        names = dict.fromkeys(n for n in [*node.input, *captured_names(node)] if n)
        self._constants = [n for n in names if view.is_weight(n) or n in view.lent]
        self.inputs = [n for n in names if n not in self._constants]
        self._outputs = [o for o in node.output if o]

    def run(self, feeds: dict[str, Array]) -> dict[str, Array]:
        """Return the node's outputs by name.

        Raises
        ------
        VerificationError
            If onnxruntime cannot run the node.
        """
        try:
            if self._session is None:
                self._session = self._open(feeds)
            values = self._session.run(self._outputs, {n: feeds[n] for n in self.inputs})
        except Exception as error:
            name = self._node.name or self._node.output[0]
            raise VerificationError(f"onnxruntime cannot run node '{name}' by itself: {str(error)[:200]}") from None
        return dict(zip(self._outputs, values, strict=True))

    def _open(self, feeds: dict[str, Array]) -> ort.InferenceSession:
        inputs = [
            helper.make_tensor_value_info(n, elem_type_of(feeds[n]), [None] * np.ndim(feeds[n])) for n in self.inputs
        ]
        constants = [to_proto(n, self._given.get(n, self._view.weight(n))) for n in self._constants]
        outputs = [helper.make_empty_tensor_value_info(o) for o in self._outputs]
        graph = helper.make_graph([self._node], "node", inputs, outputs, constants)
        model = helper.make_model(
            graph, opset_imports=list(self._view.model.opset_import), ir_version=self._view.model.ir_version
        )
        options = session_options(ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
        return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
