"""Tables that words are looked up in and scored by."""

from collections.abc import Iterable
from dataclasses import dataclass

from onnx import NodeProto

from onnxfold.graph.nodes import attr_int, attr_ints, captured_names
from onnxfold.graph.tensors import is_float
from onnxfold.graph.view import GraphView

_MATRIX = 2


@dataclass(frozen=True)
class TiedTable:
    """A table, the results of its lookups, and the tensors that are multiplied by it, all as wide as it is."""

    table: str
    width: int
    rows: tuple[str, ...]
    scored: tuple[str, ...]  # what is multiplied by it


def find_ties(view: GraphView) -> list[TiedTable]:
    """Return the tables that a Gather looks rows up in, and a MatMul or Gemm multiplies by, and nothing else reads.

    Either reads the table directly or through a Transpose. No lookup, and nothing that is multiplied, is an output of
    the graph or read by a body.
    """
    held = {name for node in view.nodes for name in captured_names(node)} | set(view.output_names)
    ties = []
    for table in dict.fromkeys(name for node in view.nodes for name in node.input):
        if not view.is_weight(table) or len(view.weights[table].shape) != _MATRIX or table in held:
            continue
        rows: list[str] = []
        scored: list[str] = []
        shape = view.weights[table].shape
        whole = is_float(view.weight_type(table)) and all(
            _meets(view, node, name, rows, scored) for name, node in readers_of(view, table)
        )
        widths = {view.shape(name)[-1:] for name in (*rows, *scored) if view.shape(name)}  # type: ignore[index]
        whole = whole and all(view.producer(name) for name in scored)
        if not whole or not rows or not scored or len(widths) != 1 or not held.isdisjoint((*rows, *scored)):
            continue
        (width,) = widths.pop()
        if width in shape:
            ties.append(TiedTable(table, int(width or 0), tuple(dict.fromkeys(rows)), tuple(dict.fromkeys(scored))))
    return ties


def readers_of(view: GraphView, table: str) -> Iterable[tuple[str, NodeProto]]:
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
