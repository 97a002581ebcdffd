"""Make one table again of two that words are looked up in, where both kept their numbers."""

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from onnxfold.graph.nodes import captured_names, node_key, rewritten
from onnxfold.graph.view import GraphView
from onnxfold.language.lookups import known_ids, looks_rows_up, rows_of_ids
from onnxfold.passes.base import Pass, PassResult
from onnxfold.passes.normalize.remove_unused import RemoveUnused

_PAIR = 2


@dataclass(frozen=True)
class JoinLookups(Pass):
    """Undo :mod:`passes.normalize.split_lookups`.

    Case 1: the sum of rows of two tables that no other node reads, where every id finds zeros in one of them. What
    nothing reads then goes with the unused nodes. A table of several classes of rare words is joined from the inside.
    """

    def run(self, view: GraphView) -> PassResult:
        """Join two tables after the other."""
        modified = False
        while (replacements := next(filter(None, (_join(view, node) for node in view.nodes)), None)) is not None:
            view.substitute(replacements)
            RemoveUnused()(view)
            view.drop_inferable_infos()
            modified = True
        return PassResult(modified)


def _join(view: GraphView, node: NodeProto) -> dict[str, NodeProto]:
    """Join the tables whose rows a node adds; return the lookup that takes its place, nothing where there is none."""
    lookups = [view.producer(name) for name in node.input] if node.op_type == "Add" else []
    if len(lookups) != _PAIR or not all(part is not None and _is_read_once(view, part) for part in lookups):
        return {}
    usual, rare = (part for part in lookups if part is not None)
    counted, shapes = view.producer(usual.input[1]), [view.weights[part.input[0]].shape for part in (usual, rare)]
    if counted is None or counted.op_type != "Sub" or shapes[0][1] != shapes[1][1]:
        return {}
    tables = [view.weight(part.input[0]) for part in (usual, rare)]
    ids, every = counted.input[0], sum(map(len, tables))
    rows, rare_rows = (rows_of_ids(view, part.input[1], every, ids) for part in (usual, rare))
    count = min(known_ids(rows, len(tables[0])), known_ids(rare_rows, len(tables[1])))
    row_values = tables[0][rows[:count]], tables[1][rare_rows[:count]]
    is_rare = (row_values[1] != 0).any(axis=1)
    if not count or not is_rare.any() or (row_values[0][is_rare] != 0).any():
        return {}
    view.set_weight(usual.input[0], np.where(is_rare[:, None], row_values[1], row_values[0]))
    return {node_key(node): rewritten(usual, inputs=[usual.input[0], ids], outputs=list(node.output))}


def _is_read_once(view: GraphView, node: NodeProto) -> bool:
    """Whether a node looks up in a table that it alone reads, and one other node reads what it finds."""
    names = node.input[0], node.output[0]
    if not looks_rows_up(view, node) or any(len(view.consumers(name)) > 1 for name in names):
        return False
    held = {name for reader in view.nodes for name in captured_names(reader)} | set(view.output_names)
    return held.isdisjoint(names)
