"""Write products by identity matrices around a table that words are looked up in and scored by."""

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, helper

from onnxfold.channels import find_groups
from onnxfold.channels.constraints.streams import is_identity
from onnxfold.graph.nodes import rewritten
from onnxfold.graph.patterns import multiplies_weight
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult
from onnxfold.passes.seams.split_tables import TiedTable, find_ties, readers_of


@dataclass(frozen=True)
class FactorTies(Pass):
    """Let a residual stream be narrower than the table that it begins and ends with.

    Case 1: a weight of two axes, which a Gather looks rows up in, and a MatMul or Gemm multiplies by, each directly or
    through a Transpose, and that nothing else reads. E[ids] becomes E[ids] I, and x E^T becomes (x I) E^T. The products
    are there only where a stream may be rotated then; while none of its channels goes, there is no need of them.
    """

    only: frozenset[str] | None = None  # the names of the matrices that are written; all if None

    def run(self, view: GraphView) -> PassResult:
        """Insert a product behind every lookup, and one in front of every tensor that is scored."""
        places = _places(view)
        if self.only is not None:
            places = [tie for tie in places if view.fresh_name(f"{tie.table}_basis") in self.only]
            _insert(view, places)
            return PassResult(bool(places))
        if not places:
            return PassResult(modified=False)
        trial = view.copy()
        written = _insert(trial, places)
        groups = find_groups(trial, streams=True).groups
        rotated = {member.axis.tensor for group in groups if group.norms for member in group.members}
        if written.isdisjoint(rotated):
            return PassResult(modified=False)
        _insert(view, places)
        return PassResult(modified=True)


def _places(view: GraphView) -> list[TiedTable]:
    return [
        tie
        for tie in find_ties(view)
        if not any(
            multiplies_weight(view, reader) and is_identity(view, reader.input[1])
            for name in tie.rows
            for reader in view.consumers(name)
        )
    ]


def _insert(view: GraphView, ties: list[TiedTable]) -> set[str]:
    """Insert the products; return the names of their weights."""
    written: set[str] = set()
    products: dict[str, NodeProto] = {}
    renamed: dict[str, str] = {}
    scored: dict[tuple[str, str], str] = {}
    for tie in ties:
        dtype = helper.tensor_dtype_to_np_dtype(view.weight_type(tie.table))
        for name in (*tie.rows, *tie.scored):
            identity = view.add_weight(f"{tie.table}_basis", np.eye(tie.width, dtype=dtype))
            result = view.fresh_name(f"{name}_whole")
            written.add(identity)
            products[name] = helper.make_node("MatMul", [name, identity], [result], result)
            if name in tie.rows:
                renamed[name] = result
            else:
                scored |= {(name, table): result for table, _ in readers_of(view, tie.table)}
    nodes: list[NodeProto] = []
    for node in view.nodes:
        inputs = [renamed.get(name, name) for name in node.input]
        if len(node.input) > 1 and (node.input[0], node.input[1]) in scored:
            inputs[0] = scored[node.input[0], node.input[1]]
        nodes.append(rewritten(node, inputs=inputs))
        nodes += [products[name] for name in node.output if name in products]
    view.replace_nodes(nodes)
    return written
