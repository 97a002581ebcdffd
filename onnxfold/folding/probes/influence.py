"""Effects of residual blocks: on their stream, and on the answers of the network.

The *influence* of a block (ShortGPT, 2024) is one minus the mean cosine of the stream before it and behind it, over all
tokens of a text, or over all places of pictures. Its *effect* is what becomes of the answers without it.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
from onnx import NodeProto

from onnxfold.folding.probes.trials import Change, run_trials
from onnxfold.graph.nodes import node_key
from onnxfold.graph.tensors import Array, Matrix
from onnxfold.graph.view import GraphView
from onnxfold.inputs.tokens.answers import TokenAnswers
from onnxfold.language.lookups import SUM_AND_NORM
from onnxfold.language.residual_branches import ResidualBlock
from onnxfold.progress import Progress, silent
from onnxfold.statistics.activations import Activations, Batches

#: What the progress callback is told.
INFLUENCE, EFFECT = "measure blocks", "probe blocks"
_PICTURES = 4
_TINY = float(np.finfo(np.float64).tiny)


def influences(
    view: GraphView, blocks: Sequence[ResidualBlock], inputs: Batches, progress: Progress = silent
) -> Matrix:
    """Return the influence of every block, shape (n_blocks,)."""
    firsts = {block.branches[0].join: (i, block.branches[0]) for i, block in enumerate(blocks)}
    lasts = {block.branches[-1].join: (i, block.branches[-1]) for i, block in enumerate(blocks)}
    walk, before, result = Activations(view, inputs), dict[int, Sequence[Array]](), np.zeros(len(blocks))
    looked_at = {key: (branch.stream, branch.result) for key, (_, branch) in (firsts | lasts).items()}
    for node in walk.walk(looked_at, partial(progress, INFLUENCE)):
        if node_key(node) in firsts:
            i, branch = firsts[node_key(node)]
            before[i] = walk.values[branch.stream]
        if node_key(node) in lasts:
            i, branch = lasts[node_key(node)]
            results = [
                x + f + _bias(view, node)
                for x, f in zip(walk.values[branch.stream], walk.values[branch.result], strict=True)
            ]
            cosines = []
            for x, y in zip(map(_vectors, before.pop(i)), map(_vectors, results), strict=True):
                norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
                cosines.append((x * y).sum(axis=1) / np.maximum(norms, _TINY))
            result[i] = 1.0 - float(np.concatenate(cosines).mean())
        walk.run(node)
    return result


def effects(
    view: GraphView,
    blocks: Sequence[ResidualBlock],
    batch: dict[str, Array],
    tokens: TokenAnswers | None = None,
    progress: Progress = silent,
) -> Matrix:
    """Return the loss of the answers without each block, shape (n_blocks,)."""
    nodes = {node_key(node): node for node in view.nodes}
    changes = {
        # A branch that adds nothing to its stream, not even the norm's bias.
        branch.join: [Change(i, branch.result, partial(np.full_like, fill_value=0 - _bias(view, nodes[branch.join])))]
        for i, block in enumerate(blocks)
        for branch in block.branches
    }
    outcomes = run_trials(view, batch, changes, partial(progress, EFFECT), tokens=tokens)
    return np.array([outcomes[i].mean_loss if i in outcomes else np.nan for i in range(len(blocks))])


def _bias(view: GraphView, join: NodeProto) -> Array:
    """Return the bias that a norm adds to the branch, 0 for others."""
    place = SUM_AND_NORM[join.op_type][2] if join.op_type in SUM_AND_NORM else len(join.input)
    name = join.input[place] if place < len(join.input) else ""
    return view.weight(name) if view.is_weight(name) else np.zeros((), np.float32)


def _vectors(values: Array) -> Matrix:
    """Return the channels of every token or place, shape (count, channels)."""
    last = np.moveaxis(values, 1, -1) if values.ndim >= _PICTURES else values
    return last.reshape(-1, last.shape[-1]).astype(np.float64)
