"""A network that onnxruntime has no memory for as a whole, run node by node."""

from onnx import helper

from onnxfold.graph.files.load import ModelLike
from onnxfold.graph.files.save import loaded_bytes
from onnxfold.graph.run.session import Feeds, InputInfo, Session
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.machine import memory
from onnxfold.statistics.activations import Activations


class WalkedNetwork:
    """Outputs of a network, of which one node's weights are in memory at a time."""

    is_twin = False

    def __init__(self, view: GraphView) -> None:
        self._view = view
        self.output_names = view.output_names

    @property
    def inputs(self) -> list[InputInfo]:
        """The inputs in order."""
        view = self._view
        return [
            InputInfo(name, helper.tensor_dtype_to_np_dtype(view.elem_type(name)), view.shape(name) or ())
            for name in view.input_names
        ]

    def run(self, feeds: Feeds) -> list[Array]:
        """Return all outputs for one set of inputs."""
        walk = Activations(self._view, [dict(feeds)])
        outputs = {name: walk.values[name][0] for name in self.output_names if name in walk.values}
        wanted = set(self.output_names)
        for node in walk.walk():
            walk.run(node)
            outputs |= {name: walk.values[name][0] for name in wanted.intersection(node.output)}
        return [outputs[name] for name in self.output_names]


def open_network(model: ModelLike, view: GraphView) -> Session | WalkedNetwork:
    """Return a model in onnxruntime, as a whole where its weights fit into memory."""
    return WalkedNetwork(view) if loaded_bytes(view) > memory.limit() else Session(model, counted=view)
