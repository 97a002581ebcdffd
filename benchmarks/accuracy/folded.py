"""Layers that a fold takes channels from, and the covariances of their channels on test images."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from onnx import TensorProto, helper

from benchmarks.accuracy.networks import Images, Network
from onnxfold.channels.layers import group_layers, layer_of
from onnxfold.config import FoldConfig
from onnxfold.folding.fold_model import fold_model
from onnxfold.folding.fold_task import FoldTask
from onnxfold.folding.methods import find_method
from onnxfold.folding.open_model import open_model
from onnxfold.graph.files.save import to_model
from onnxfold.graph.view import GraphView
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.progress import silent

_DEAD = 1e-6
_BATCH = 64

Positions = npt.NDArray[np.int64]
Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class FoldedLayer:
    """A layer that a fold takes channels from.

    Parameters
    ----------
    name : str
        Of its node.
    tensor : str
        What leaves its BatchNormalization, or the layer where it has none.
    before : ndarray of int, shape (n,)
        Its channels in the original network.
    after : ndarray of int, shape (k,)
        Its channels in the folded network, by cluster.
    labels : ndarray of int, shape (n,)
        Cluster of each channel, -1 for none.
    """

    name: str
    tensor: str
    before: Positions
    after: Positions
    labels: Positions


@dataclass(frozen=True)
class FoldedNetwork:
    """A network before and after a fold, and the layers that lost channels, in the order of the graph."""

    original: GraphView
    folded: GraphView
    layers: list[FoldedLayer]


def fold_of(network: Network, config: FoldConfig, inputs: ModelInputs | None) -> FoldedNetwork:
    """Fold a network without control flow on some inputs, where the method takes any."""
    method = find_method(config.method, cluster=config.cluster, repair=config.repair)
    opened = open_model(network.path, {}, silent)
    scope = opened.scopes[0]
    original = scope.view.copy()
    task = FoldTask(opened, config, method, silent)
    request = task.request()
    prepared = task.prepared(inputs, chooses=request.widths is None)
    folded = fold_model(prepared, request, config, silent)
    plan = folded.graphs[0].plan
    order = {node.name: i for i, node in enumerate(original.nodes)}
    found = {}
    for group, partition in plan:
        for layer in group_layers(original, group):
            node = original.producer(layer.rows.uses[0].node)
            own = None if node is None else layer_of(original, node)
            assert own is not None  # it was found by this use
            tensor = layer.normalization.output[0] if layer.normalization is not None else own.output
            rows = plan.fold_member(layer.rows, partition).positions
            name = own.last.name
            found[name] = FoldedLayer(name, tensor, layer.rows.positions[:, 0], rows[:, 0], partition.labels)
    return FoldedNetwork(original, folded.view, sorted(found.values(), key=lambda layer: order[layer.name]))


def alive(variances: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return which channels are not dead."""
    return np.asarray(variances > _DEAD * variances.mean())


def channel_covariances(view: GraphView, tensors: list[str], images: Images) -> dict[str, Matrix]:
    """Return the covariance of the channels (axis 1) of some tensors over images and positions."""
    model = to_model(view)
    there = {o.name for o in model.graph.output}
    model.graph.output.extend(helper.make_tensor_value_info(t, TensorProto.FLOAT, None) for t in set(tensors) - there)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    sums: dict[str, tuple[Matrix, Matrix, int]] = {}
    for start in range(0, len(images), _BATCH):
        for tensor, values in zip(tensors, session.run(tensors, {name: images[start : start + _BATCH]}), strict=True):
            rows = np.moveaxis(values, 1, 0).reshape(values.shape[1], -1).astype(np.float64)
            total, products, count = sums.get(tensor, (np.zeros(len(rows)), np.zeros((len(rows), len(rows))), 0))
            sums[tensor] = total + rows.sum(axis=1), products + rows @ rows.T, count + rows.shape[1]
    return {t: products / n - np.outer(total / n, total / n) for t, (total, products, n) in sums.items()}
