"""Write products by identity matrices around a table that words are looked up in and scored by."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, helper

from onnxfold.channels import find_groups
from onnxfold.channels.rotations import is_identity
from onnxfold.graph.nodes import attr_int, attr_ints, captured_names, rewritten
from onnxfold.graph.tensors import is_float
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult

_MATRIX = 2


@dataclass(frozen=True)
class FactorTies(Pass):
    """Let a residual stream be narrower than the table that it begins and ends with.

    Case 1: a weight of two axes, which a Gather looks rows up in, and a MatMul or Gemm multiplies by, each directly or
    through a Transpose, and that nothing else reads. E[ids] becomes E[ids] I, and x E^T becomes (x I) E^T. The products
    are there only where a stream may be rotated then; while none of its channels goes, they are removed again
    (:mod:`passes.normalize.drop_identity_products`).
    """

    def run(self, view: GraphView) -> PassResult:
        """Insert a product behind every lookup, and one in front of every tensor that is scored."""
        places = _places(view)
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


@dataclass(frozen=True)
class _Tie:
    """A table, the results of its lookups, and the tensors that are multiplied by it, all as wide as it is."""

    table: str
    width: int
    rows: tuple[str, ...]
    scored: tuple[str, ...]


def _places(view: GraphView) -> list[_Tie]:
    held = {name for node in view.nodes for name in captured_names(node)} | set(view.output_names)
    found = []
    for table in dict.fromkeys(name for node in view.nodes for name in node.input):
        if not view.is_weight(table) or len(view.weights[table].shape) != _MATRIX or table in held:
            continue
        rows: list[str] = []
        scored: list[str] = []
        shape = view.weights[table].shape
        whole = is_float(view.weight_type(table)) and all(
            _meets(view, node, name, rows, scored) for name, node in _readers(view, table)
        )
        widths = {view.shape(name)[-1:] for name in (*rows, *scored) if view.shape(name)}  # type: ignore[index]
        whole = whole and all(view.producer(name) for name in scored)
        if not whole or not rows or not scored or len(widths) != 1 or not held.isdisjoint((*rows, *scored)):
            continue
        (width,) = widths.pop()
        if width in shape and not any(_is_factored(view, name) for name in rows):
            found.append(_Tie(table, int(width or 0), tuple(dict.fromkeys(rows)), tuple(dict.fromkeys(scored))))
    return found


def _readers(view: GraphView, table: str) -> Iterable[tuple[str, NodeProto]]:
    """Yield what reads a table, directly or turned, with the name that it reads."""
    for node in view.consumers(table):
        if node.op_type == "Transpose" and attr_ints(node, "perm") in ([], [1, 0]):
            yield from ((node.output[0], reader) for reader in view.consumers(node.output[0]))
        else:
            yield table, node


def _meets(view: GraphView, node: NodeProto, name: str, rows: list[str], scored: list[str]) -> bool:
    """Note what a node looks up in a table, or multiplies by it; return whether it does either."""
    if node.op_type == "Gather" and node.input[0] == name and attr_int(node, "axis", 0) in (0, -2):
        rows.append(node.output[0])
        return True
    if node.op_type in ("MatMul", "Gemm") and node.input[1] == name and node.input[0] != name:
        scored.append(node.input[0])
        return not attr_int(node, "transA", 0)
    return False


def _is_factored(view: GraphView, rows: str) -> bool:
    readers = view.consumers(rows)
    return any(n.op_type == "MatMul" and view.is_weight(n.input[1]) and is_identity(view, n.input[1]) for n in readers)


def _insert(view: GraphView, ties: list[_Tie]) -> set[str]:
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
                scored |= {(name, table): result for table, _ in _readers(view, tie.table)}
    nodes: list[NodeProto] = []
    for node in view.nodes:
        inputs = [renamed.get(name, name) for name in node.input]
        if len(node.input) > 1 and (node.input[0], node.input[1]) in scored:
            inputs[0] = scored[node.input[0], node.input[1]]
        nodes.append(rewritten(node, inputs=inputs))
        nodes += [products[name] for name in node.output if name in products]
    view.replace_nodes(nodes)
    return written
