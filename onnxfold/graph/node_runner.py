"""Single operators in onnxruntime, for walks that read or change a network between its nodes."""

import numpy as np
import onnxruntime as ort
from onnx import NodeProto, helper

from onnxfold.errors import VerificationError
from onnxfold.graph.loops import ending, open_loop
from onnxfold.graph.nodes import captured_names
from onnxfold.graph.session import session_options
from onnxfold.graph.tensors import Array, LazyTensor, elem_type_of, to_proto
from onnxfold.graph.view import GraphView

#: Weights from this size on are inputs of the one-node model. A weight inside it would be held several times: in its
#: protobuf message, in the serialized model and in onnxruntime.
_FED_BYTES = 64 << 20


class NodeRunner:
    """Runs one node of a graph on batches of inputs; weights come from the graph.

    Parameters
    ----------
    view : GraphView
        The graph that the node belongs to.
    node : NodeProto
        The node.
    """

    def __init__(self, view: GraphView, node: NodeProto) -> None:
        self._view = view
        self._node = node
        self._session: ort.InferenceSession | None = None
        names = dict.fromkeys(n for n in [*node.input, *captured_names(node)] if n)
        constants = [n for n in names if view.is_weight(n) or n in view.lent]
        self.inputs = [n for n in names if n not in constants]
        large = [(n, self._mapped(n)) for n in constants]
        self._fed = {n: values for n, values in large if values is not None}
        self._constants = [n for n in constants if n not in self._fed]
        self._loop = open_loop(view, [node])
        self._outputs = [o for o in node.output if o]

    def run(self, feeds: dict[str, Array]) -> dict[str, Array]:
        """Return the node's outputs by name.

        Raises
        ------
        VerificationError
            If onnxruntime cannot run the node, or it is a Loop that does not end.
        """
        given = {n: feeds[n] for n in self.inputs} | self._fed
        try:
            if self._session is None:
                self._session = self._open(given)
            with ending(self._loop) as options:
                values = self._session.run(self._outputs, given, options)
        except VerificationError:
            raise
        except Exception as error:
            name = self._node.name or self._node.output[0]
            raise VerificationError(f"onnxruntime cannot run node '{name}' by itself: {str(error)[:200]}") from None
        return dict(zip(self._outputs, values, strict=True))

    def _mapped(self, name: str) -> Array | None:
        """Return a weight that is too large to be copied, None for others and for types that cannot be fed."""
        holder = self._view.lent.get(name, self._view)
        weight = holder.weights[name]
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(holder.weight_type(name)))
        if dtype.kind not in "biuf" or holder.weight_size(name) * dtype.itemsize < _FED_BYTES:
            return None
        return weight.mapped() if isinstance(weight, LazyTensor) else np.ascontiguousarray(weight)

    def _open(self, feeds: dict[str, Array]) -> ort.InferenceSession:
        inputs = [helper.make_tensor_value_info(n, elem_type_of(v), [None] * np.ndim(v)) for n, v in feeds.items()]
        constants = [to_proto(n, self._view.weight(n)) for n in self._constants]
        outputs = [helper.make_empty_tensor_value_info(o) for o in self._outputs]
        graph = helper.make_graph([self._node], "node", inputs, outputs, constants)
        model = helper.make_model(
            graph, opset_imports=list(self._view.model.opset_import), ir_version=self._view.model.ir_version
        )
        options = session_options(ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
        return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
