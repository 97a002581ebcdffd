"""Networks of a declared batch in torch on more samples at a time: most of them declare it at their inputs only."""

from collections.abc import Mapping

import numpy as np
import torch
from onnx import NodeProto
from torch import Tensor

from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.nodes import attr_int, node_key, with_input
from onnxfold.graph.patterns import Op
from onnxfold.graph.run.session import batch_of
from onnxfold.graph.view import GraphView
from onnxfold.torch_graph.executor import TorchGraph


def with_free_batch(view: GraphView) -> GraphView:
    """Return a copy whose Reshapes copy the declared batch; the graph itself where none states it."""
    batch = batch_of(view)
    stating = [] if batch is None else [node for node in view.nodes if _states_batch(view, node, batch)]
    if not stating:
        return view
    freed, made = view.copy(), dict[str, NodeProto]()
    for node in stating:
        target = np.array([0, *view.weight(node.input[1])[1:]], np.int64)
        made[node_key(node)] = with_input(node, 1, freed.add_weight(f"{node.output[0]}_shape", target))
    freed.substitute(made)
    return freed


def _states_batch(view: GraphView, node: NodeProto, batch: int) -> bool:
    """Whether the target of a Reshape begins with the batch that its input has."""
    if not Op("Reshape").fits(node) or not view.is_weight(node.input[1]) or attr_int(node, "allowzero", 0):
        return False
    return (view.shape(node.input[0]) or ())[:1] == tuple(view.weight(node.input[1])[:1].tolist()) == (batch,)


def takes_any_batch(graph: TorchGraph, feeds: Mapping[str, Tensor], answers: Mapping[str, Tensor]) -> bool:
    """Whether a graph with a declared batch answers the same for two batches at once, as most do."""
    size = max(len(t) for t in feeds.values() if t.ndim)
    twice = {n: torch.cat([t, t]) if t.ndim and len(t) == size else t for n, t in feeds.items()}
    try:
        both = graph.run(twice, tuple(answers))
    except UnsupportedModelError:
        return False
    return all(
        len(t) == 2 * len(answers[n]) and torch.allclose(t, torch.cat([answers[n]] * 2), rtol=1e-3, atol=1e-3)
        for n, t in both.items()
    )
