r"""Variance ratios of folded layers, measured on test images.

The ratio of a layer is the mean over its original channels i of Var(x'_c(i)) / Var(x_i), with c(i) the cluster of i and
x what leaves the layer's BatchNormalization, or the layer where it has none. Near one is healthy, below one the
activations have collapsed, above they overshoot. Channels that no cluster takes, and dead ones, do not count.

Reference: REPAIR, arXiv 2211.08403; used for folding in arXiv 2502.10216.
"""

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from benchmarks.accuracy.networks import Images, Network
from onnxfold.channels.layers import group_layers
from onnxfold.config import FoldConfig
from onnxfold.folding.fold_model import fold_model
from onnxfold.folding.fold_task import FoldTask
from onnxfold.folding.methods import find_method
from onnxfold.folding.open_model import open_model
from onnxfold.graph.files.save import to_model
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.progress import silent

#: A variance this much smaller than the layer's mean variance is a dead channel's.
_DEAD = 1e-6
_BATCH = 64

Vector = npt.NDArray[np.float64]


def variance_ratios(
    network: Network, config: FoldConfig, images: Images, inputs: ModelInputs | None
) -> list[tuple[str, float]]:
    """Fold a network and return layers with their variance ratios, in the order of the graph.

    Parameters
    ----------
    network : Network
        A network without control flow.
    config : FoldConfig
        The request.
    images : ndarray of float32, shape (n, ...)
        What both networks are run on.
    inputs : ModelInputs or None
        What the network is folded on.
    """
    method = find_method(config.method, cluster=config.cluster, repair=config.repair)
    opened = open_model(network.path, {}, silent)
    scope = opened.scopes[0]
    original = scope.view.copy()
    task = FoldTask(opened, config, method, silent)
    request = task.request()
    prepared = task.prepared(inputs, chooses=request.widths is None)
    folded = fold_model(prepared, request, config, silent)
    plan = folded.graphs[0].plan
    found = []
    for group, partition in plan:
        for layer in group_layers(original, group):
            tensor = layer.normalization.output[0] if layer.normalization is not None else layer.output
            rows = plan.fold_member(layer.rows, partition).positions
            found.append((layer.node.name, tensor, layer.rows.positions[:, 0], rows[:, 0], partition.labels))
    tensors = [tensor for _, tensor, *_ in found]
    dense, folded = (channel_variances(to_model(v), tensors, images) for v in (original, folded.view))
    ratios = {name: ratio(dense[tensor][old], folded[tensor][new], labels) for name, tensor, old, new, labels in found}
    order = {node.name: i for i, node in enumerate(original.nodes)}
    return sorted(ratios.items(), key=lambda item: order[item[0]])


def ratio(dense: Vector, folded: Vector, labels: npt.NDArray[np.int64]) -> float:
    """Return the mean ratio of variances over the original channels.

    Parameters
    ----------
    dense : ndarray of shape (n,)
        Variances of the original channels.
    folded : ndarray of shape (k,)
        Variances of the clusters.
    labels : ndarray of int, shape (n,)
        Cluster of each channel, -1 for none.
    """
    counted = (labels >= 0) & (dense > _DEAD * dense.mean())
    return float((folded[labels[counted]] / dense[counted]).mean())


def channel_variances(model: onnx.ModelProto, tensors: list[str], images: Images) -> dict[str, Vector]:
    """Return the variance of every channel (axis 1) of some tensors over images and positions."""
    there = {o.name for o in model.graph.output}
    added = [helper.make_tensor_value_info(t, TensorProto.FLOAT, None) for t in set(tensors) - there]
    model.graph.output.extend(added)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    sums: dict[str, tuple[Vector, Vector, int]] = {}
    for start in range(0, len(images), _BATCH):
        for tensor, values in zip(tensors, session.run(tensors, {name: images[start : start + _BATCH]}), strict=True):
            rows = np.moveaxis(values, 1, 0).reshape(values.shape[1], -1).astype(np.float64)
            total, squares, count = sums.get(tensor, (np.zeros(len(rows)), np.zeros(len(rows)), 0))
            sums[tensor] = total + rows.sum(axis=1), squares + (rows**2).sum(axis=1), count + rows.shape[1]
    return {t: np.maximum(squares / n - (total / n) ** 2, 0.0) for t, (total, squares, n) in sums.items()}
