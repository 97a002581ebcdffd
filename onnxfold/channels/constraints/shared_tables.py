"""Tables of rows that a model looks up and scores by, each row written in a basis of its own.

Let A, of shape (d, rows), hold the rows of a table in a basis B. A lookup computes A[:, i]^T B_in, and scores are
(h B_out) A, where B_in and B_out are the same basis, turned. A channel is a coordinate of the rows: A produces it, and
both matrices read it. To a product alone it would look the other way round where scores are computed; but whatever the
channels become, P A on one side asks for B_in^T Q^T on both, with P Q ~ I.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from onnx import NodeProto

from onnxfold.channels.declarations import Axis, Declaration, Role, Use
from onnxfold.channels.layers import linear
from onnxfold.graph.nodes import attr_ints
from onnxfold.graph.view import GraphView
from onnxfold.language.lookups import looks_up

_MATRIX = 2


@dataclass(frozen=True, eq=False)
class SharedTable:
    """Where a table is read."""

    rows: str
    looked_up: tuple[NodeProto, ...]  # the products of looked-up columns of A and B_in
    scored: tuple[NodeProto, ...]  # the products of B_out and what is scored, which A multiplies


def shared_tables(view: GraphView) -> list[SharedTable]:
    """Return the tables of a graph that are looked up and scored by in a basis of their own."""
    tables = []
    for name in dict.fromkeys(node.input[0] for node in view.nodes if _looks_up(view, node)):
        looked_up: list[NodeProto] = []
        scored: list[NodeProto] = []
        for node in view.consumers(name):
            if _looks_up(view, node) and node.input[0] == name:
                looked_up += _products_of(view, node)
            elif _multiplies(view, node) and node.input[1] == name:
                product = view.producer(node.input[0])
                is_basis = product is not None and _multiplies(view, product)
                scored += [product] if product is not None and is_basis else []
        if looked_up and scored and len(looked_up) + len(scored) == len(view.consumers(name)):
            tables.append(SharedTable(name, tuple(looked_up), tuple(scored)))
    return tables


def with_bases(view: GraphView, declarations: list[Declaration]) -> list[Declaration]:
    """Return declarations in which the rows of such tables produce channels, and their bases read them."""
    roles: dict[Axis, Role] = {}
    for table in shared_tables(view):
        roles[Axis(table.rows, 0)] = Role.PRODUCER
        roles |= {Axis(node.input[1], 0): Role.BASIS for node in table.looked_up}
        roles |= {Axis(node.input[1], 1): Role.BASIS for node in table.scored}
    if not roles:
        return declarations
    return [replace(d, role=roles.get(d.axis, d.role)) if isinstance(d, Use) else d for d in declarations]


def _looks_up(view: GraphView, node: NodeProto) -> bool:
    """Whether a node looks up columns of a matrix."""
    return looks_up(view, node, 1)


def _products_of(view: GraphView, lookup: NodeProto) -> Iterable[NodeProto]:
    """Yield the product with a basis that alone reads what is looked up, through a Transpose that puts rows last."""
    readers = view.consumers(lookup.output[0])
    if len(readers) != 1 or readers[0].op_type != "Transpose" or lookup.output[0] in view.output_names:
        return
    perm = attr_ints(readers[0], "perm")
    turned = view.consumers(readers[0].output[0])
    if perm == [*range(1, len(perm)), 0] and len(turned) == 1 and readers[0].output[0] not in view.output_names:
        yield from (node for node in turned if _multiplies(view, node) and node.input[0] == readers[0].output[0])


def _multiplies(view: GraphView, node: NodeProto) -> bool:
    """Whether a node multiplies by a matrix, and does nothing else."""
    operator = linear(view, node)
    if operator is None or not operator.weight or operator.rows != Axis(operator.weight, 1) or node.attribute:
        return False
    return list(node.input[1:]) == [operator.weight] and len(view.weights[operator.weight].shape) == _MATRIX
