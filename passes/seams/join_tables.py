"""Make one table again of a table that was split, where its rare rows kept their numbers."""

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from onnxfold.channels.constraints.rotations import is_identity
from onnxfold.channels.constraints.shared_tables import SharedTable, shared_tables
from onnxfold.graph.nodes import node_key, rewritten
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult
from onnxfold.passes.normalize.remove_unused import RemoveUnused


@dataclass(frozen=True)
class JoinTables(Pass):
    """Undo :mod:`passes.normalize.split_tables`.

    Case 1: all bases of the rare rows are identity matrices, and the other rows are one table. What nothing reads then
    goes with the unused nodes. A table of several classes of rare words is joined from the inside.
    """

    def run(self, view: GraphView) -> PassResult:
        """Join one table after the other."""
        modified = False
        while (whole := next((table for table in shared_tables(view) if _is_whole(view, table)), None)) is not None:
            view.substitute(_join(view, whole))
            RemoveUnused()(view)
            view.drop_inferable_infos()
            modified = True
        return PassResult(modified)


def _is_whole(view: GraphView, shared: SharedTable) -> bool:
    """Whether the rows of a table are what they were, and so are those that it is to be joined with."""
    choices = [node for product in shared.looked_up for node in view.consumers(product.output[0])]
    if not all(is_identity(view, node.input[1]) for node in (*shared.looked_up, *shared.scored)):
        return False
    return all(n.op_type == "Where" and _producer(view, n.input[2]).op_type == "Gather" for n in choices)


def _join(view: GraphView, shared: SharedTable) -> dict[str, NodeProto]:
    """Put the rare rows back; return the nodes that read the table in place of those that chose between two."""
    changed: dict[str, NodeProto] = {}
    first, table, is_turned = 0, "", False
    for product in shared.looked_up:
        (chosen,) = view.consumers(product.output[0])
        lookup, past = _producer(view, chosen.input[2]), _id_offset(view, chosen)
        first = int(view.weight(past.input[1]))
        turning = view.producer(lookup.input[0])
        table, is_turned = (lookup.input[0], False) if turning is None else (turning.input[0], True)
        inputs = [lookup.input[0], past.input[0]]
        changed[node_key(chosen)] = rewritten(lookup, inputs=inputs, outputs=list(chosen.output))
    for product in shared.scored:
        (rare,) = view.consumers(product.output[0])
        (words,) = view.consumers(rare.output[0])
        usual = _producer(view, words.input[0])
        usual = _producer(view, usual.input[0]) if usual.op_type == "Split" else usual
        changed[node_key(words)] = rewritten(usual, outputs=list(words.output))
    rows, across = view.weight(shared.rows), 1 if is_turned else 0
    others = view.weight(table)
    parts = np.split(others, [first], axis=across)
    view.set_weight(table, np.concatenate([parts[0], rows if is_turned else rows.T, parts[1]], axis=across))
    return changed


def _id_offset(view: GraphView, chosen: NodeProto) -> NodeProto:
    """Return the node that counts ids from the first rare id."""
    return _producer(view, _producer(view, _producer(view, chosen.input[0]).input[0]).input[0])


def _producer(view: GraphView, tensor: str) -> NodeProto:
    node = view.producer(tensor)
    assert node is not None, tensor
    return node
