"""Write packed projections of queries, keys and values as two products."""

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, helper

from onnxfold.graph.nodes import node_key, rewritten
from onnxfold.graph.view import GraphView
from onnxfold.language.projections import Projection, have_room, head_counts, packed_projection
from onnxfold.passes.base import Pass, PassResult
from onnxfold.passes.seams.factor_queries import is_written

#: The opset from which on the sizes of a Split are an input.
_OPSET = 13


@dataclass(frozen=True)
class SplitProjections(Pass):
    """Let queries have a weight of their own.

    Case 1: GroupQueryAttention that reads x [W_q, W_k, W_v], as onnxruntime-genai's builder writes it, perhaps with a
    bias. It reads x W_q, and both parts of x [W_k, W_v], then.
    """

    only: frozenset[str] | None = None  # the names of the matrices that are written in front of W_q; all if None

    def run(self, view: GraphView) -> PassResult:
        """Split the projection of every such node."""
        made: dict[str, list[NodeProto]] = {}
        parts: dict[str, str] = {}
        if view.opset() >= _OPSET and have_room(view):
            for node in view.nodes:
                projection = packed_projection(view, node)
                if projection is not None and is_written(view, projection.weight, self.only):
                    made |= {node_key(old): [] for old in projection.nodes}
                    made[node_key(node)], others = _split(view, projection, node)
                    parts |= dict(zip(others, filter(None, (projection.weight, projection.bias(view))), strict=True))
        if made:
            view.replace_nodes(new for n in view.nodes for new in made.get(node_key(n), [n]))
            view.drop_inferable_infos()
        return PassResult(bool(made), parts)


def _split(view: GraphView, packed: Projection, node: NodeProto) -> tuple[list[NodeProto], list[str]]:
    """Return the nodes in place of a projection and the attention that reads it, and the weights of keys and values.

    Queries keep the names of the projection.
    """
    queries, keys = head_counts(node)
    columns = view.weights[packed.weight].shape[1]
    own = columns // (queries + 2 * keys) * queries
    others, weights = _others(view, packed, own)
    for name in filter(None, (packed.weight, packed.bias(view))):
        view.set_weight(name, np.ascontiguousarray(view.weight(name)[..., :own]))
    sizes = view.add_weight(f"{packed.weight}_sizes", np.full(2, (columns - own) // 2, np.int64))
    parts = [view.fresh_name(f"{packed.result}_{part}") for part in ("keys", "values")]
    split = helper.make_node("Split", [others[-1].output[0], sizes], parts, parts[0], axis=-1)
    attention = rewritten(node, inputs=[packed.result, *parts, *node.input[3:]])
    return [*packed.nodes, *others, split, attention], weights


def _others(view: GraphView, packed: Projection, start: int) -> tuple[list[NodeProto], list[str]]:
    """Return nodes that write the columns of a projection from one on, and their weights."""
    made: list[NodeProto] = []
    weights: list[str] = []
    source = packed.product.input[0]
    for old, weight in zip(packed.nodes, filter(None, (packed.weight, packed.bias(view))), strict=True):
        name = view.add_weight(f"{weight}_others", np.ascontiguousarray(view.weight(weight)[..., start:]))
        result = view.fresh_name(f"{old.output[0]}_others")
        made.append(rewritten(old, inputs=[name if n == weight else source for n in old.input], outputs=[result]))
        made[-1].name = f"{old.name or old.output[0]}_others"
        source = result
        weights.append(name)
    return made, weights
