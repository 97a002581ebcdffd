"""Seams: identity matrices behind tables and in front of projections of queries, and parts for rows of rare words."""

from dataclasses import dataclass, field

import numpy as np
from onnx import NodeProto, TensorProto, helper

from onnxfold.graph.nodes import captured_names, node_key, rewritten, with_input
from onnxfold.graph.patterns import multiplies_weight
from onnxfold.graph.tensors import Array, LazyTensor, is_float
from onnxfold.graph.view import GraphView
from onnxfold.language import lookups
from onnxfold.passes.base import Pass, PassResult

#: A table has so many times more rows than columns: narrower ones save little, and cost a product per token.
LEAST_ROWS = 4
#: A table, or a part of one, holds at least this part of all weights: else, a product per token is a high price.
_LEAST_SHARE, LEAST_SHARE_OF_PART = 0.05, 0.02
#: Rows that are compared at a time.
_ROWS = 1024
#: How many channels there must be to be told apart.
_LEAST_COLUMNS = 4


@dataclass(frozen=True)
class SeamPass(Pass):
    """A pass that writes identity matrices beside weights."""

    only: frozenset[str] | None = field(default=None, kw_only=True)  # the names of those that are written; all if None

    def writes(self, view: GraphView, weight: str) -> bool:
        """Whether the matrix beside a weight is written."""
        return self.only is None or view.fresh_name(f"{weight}_basis") in self.only


@dataclass(frozen=True)
class RareRows(SeamPass):
    """A pass that takes rows of rare words out of tables."""

    first: int  # the first id of these words, and the one behind the last
    stop: int

    def fits(self, rows: int, width: int, weights: int) -> bool:
        """Whether a table has these rows, and they are enough to be narrower than the others, out of all weights."""
        count = self.stop - self.first
        fits = 0 < self.first < self.stop <= rows and count >= LEAST_ROWS * width
        return fits and count * width >= LEAST_SHARE_OF_PART * weights


class FactorTables(SeamPass):
    """Let a table be narrower than what reads it: E[ids] becomes E[ids] I.

    Case 1: Gather of rows of a large weight of two axes that no other node, body or output reads; a table that the head
    of a language model shares stays. The columns of the table are then channels that a product alone reads, and may be
    rotated; while none of them goes, there is no need of the product.
    """

    def run(self, view: GraphView) -> PassResult:
        """Insert one product per table."""
        captured = {name for node in view.nodes for name in captured_names(node)}
        weights = sum(map(view.weight_size, view.float_weight_names()))
        readers = [
            node
            for node in view.nodes
            if is_own_table(view, node, captured)
            and view.weight_size(node.input[0])
            >= (LEAST_SHARE_OF_PART if lookups.is_part(view, node.input[0]) else _LEAST_SHARE) * weights
        ]
        twins = _twins(view, {node.input[0] for node in readers})
        products: dict[str, NodeProto] = {}
        for node in readers:
            table, rows = node.input[0], node.output[0]
            if table not in twins and self.writes(view, table):
                width, name = view.weights[table].shape[1], f"{node.name or rows}_whole"
                products[rows] = identity_product(view, rows, table, width, name)
        view.rename_inputs({rows: product.output[0] for rows, product in products.items()})
        readers = [node for node in view.nodes if node_key(node) in products]
        return PassResult(view.expand({node_key(node): [node, products[node_key(node)]] for node in readers}))


def add_identity(view: GraphView, weight: str, width: int) -> str:
    """Add an identity matrix beside a weight, of its type; return the name."""
    kind = helper.tensor_dtype_to_np_dtype(view.weight_type(weight))
    return view.add_weight(f"{weight}_basis", np.eye(width, dtype=kind))


def identity_product(view: GraphView, tensor: str, table: str, width: int, name: str = "") -> NodeProto:
    """Return the product of a tensor by an identity matrix, which becomes a weight beside a table."""
    basis, result = add_identity(view, table, width), view.fresh_name(f"{tensor}_whole")
    return helper.make_node("MatMul", [tensor, basis], [result], name or result)


def is_own_table(view: GraphView, node: NodeProto, captured: set[str]) -> bool:
    """Whether a node looks up rows of a large table that is its own."""
    if not lookups.looks_up(view, node):
        return False
    table, rows = node.input[0], node.output[0]
    shape = view.weights[table].shape
    if not is_float(view.weight_type(table)):
        return False
    if shape[1] < _LEAST_COLUMNS or shape[0] < LEAST_ROWS * shape[1] or len(view.consumers(table)) > 1:
        return False
    if rows in view.output_names or rows in captured or table in captured or table in view.output_names:
        return False
    readers = view.consumers(rows)
    # Rows that a weight multiplies may be rotated as they are.
    return bool(readers) and not any(node.input[0] == rows and multiplies_weight(view, node) for node in readers)


def _twins(view: GraphView, tables: set[str]) -> set[str]:
    """Return the tables that another weight holds, too, as it is or turned."""
    twins: set[str] = set()
    for table in tables:
        shape, kind = tuple(view.weights[table].shape), view.weight_type(table)
        for name, other in view.weights.items():
            turned = tuple(other.shape) == shape[::-1]
            if name != table and view.weight_type(name) == kind and (turned or tuple(other.shape) == shape):
                values = _values(view, name)
                if _are_equal(_values(view, table), values.T if turned else values):
                    twins.add(table)
    return twins


def _values(view: GraphView, weight: str) -> Array:
    """Return a weight, of which few rows may be read."""
    held = view.weights[weight]
    return held.mapped() if isinstance(held, LazyTensor) else held


def _are_equal(a: Array, b: Array) -> bool:
    return all(np.array_equal(a[at : at + _ROWS], b[at : at + _ROWS]) for at in range(0, len(a), _ROWS))


#: The opsets from which on integers are compared, and the sizes of a Split are an input.
_COMPARED, _SIZED = 12, 13


class SplitLookups(RareRows):
    """Let rare words be written in fewer numbers than others.

    Case 1: a table E that only a Gather reads (:class:`FactorTables`). Its rare rows A and all others
    E' are two tables then, and every id finds zeros in one of them:

        E[i] = E'[i, or a row of zeros where i is rare] + A[i - first + 1, or a row of zeros where it is not].

    Zeros count for nothing where it is measured what is read of a table, so each of them may be rotated, and be
    narrower, by itself. While neither is, there is no need of two.
    """

    def run(self, view: GraphView) -> PassResult:
        """Split every table that has these ids."""
        if view.opset() < _COMPARED:
            return PassResult(modified=False)
        captured = {name for node in view.nodes for name in captured_names(node)}
        weights = sum(map(view.weight_size, view.float_weight_names()))
        made: dict[str, list[NodeProto]] = {}
        parts: dict[str, str] = {}
        for node in view.nodes:
            is_own = is_own_table(view, node, captured)
            # Constants of their type are added to what is looked up.
            is_lookup = is_own and view.elem_type(node.input[1]) in (TensorProto.INT32, TensorProto.INT64)
            if is_lookup and self._fits(view, node.input[0], weights):
                made[node_key(node)], rare = self._split(view, node)
                parts[rare] = node.input[0]
        if view.expand(made):
            view.drop_inferable_infos()
        return PassResult(bool(parts), parts)

    def _fits(self, view: GraphView, table: str, weights: int) -> bool:
        """Whether both parts of a table are large enough to be narrower, and one of them is to be."""
        parts = table, view.fresh_name(f"{table}_from_{self.first}")
        rows, width = view.weights[table].shape
        is_usual = rows - (self.stop - self.first) >= LEAST_ROWS * width
        return is_usual and self.fits(rows, width, weights) and any(self.writes(view, part) for part in parts)

    def _split(self, view: GraphView, node: NodeProto) -> tuple[list[NodeProto], str]:
        """Return the nodes that look an id up in both tables, and the name of the new one."""
        table, ids = node.input
        values = view.weight(table)
        zeros = np.zeros_like(values[:1])
        parts = np.split(values, [self.first, self.stop])
        rare = view.add_weight(f"{table}_from_{self.first}", np.concatenate([zeros, parts[1], zeros]))
        view.set_weight(table, np.concatenate([parts[0], zeros, parts[2]]))
        names = view.fresh_names(f"{table}_from_{self.first}_ids")
        kind = np.dtype(helper.tensor_dtype_to_np_dtype(view.elem_type(ids)))
        made: list[NodeProto] = []

        def add(operator: str, a: str, b: str | int) -> str:
            name = next(names)
            other = view.add_weight(f"{name}_at", np.array(b, kind)) if isinstance(b, int) else b
            made.append(helper.make_node(operator, [a, other], [name], name))
            return name

        count = self.stop - self.first
        within = add("Min", add("Max", add("Sub", ids, self.first), 0), count - 1)
        other = add("Sub", ids, within)
        place = add("Min", add("Max", add("Sub", ids, self.first - 1), 0), count + 1)
        usual, rare_rows = next(names), next(names)
        name = f"{node.name or node.output[0]}_from_{self.first}"
        made += [
            rewritten(node, inputs=[table, other], outputs=[usual]),
            helper.make_node("Gather", [rare, place], [rare_rows], name),
            helper.make_node("Add", [usual, rare_rows], [node.output[0]], f"{name}_words"),
        ]
        return made, rare


class FactorQueries(SeamPass):
    """Let queries be computed of fewer numbers than they are: x W becomes (x I) W.

    Case 1: a MatMul whose result becomes the queries of attention with a cache
    (:func:`onnxfold.language.lookups.query_products`), where two narrower products can be smaller than one. What is
    cached keeps the sizes of heads; scores suffer little where queries are of low rank. What lies between I and W may
    be rotated; while it keeps its width, there is no need of the product.
    """

    def run(self, view: GraphView) -> PassResult:
        """Insert one product per projection; none where their bases would take too much memory."""
        products = (node for node in lookups.query_products(view) if _may_be_narrower(view, node))
        projections = [node for node in products if self.writes(view, node.input[1])]
        if not projections or not lookups.have_room(view):
            return PassResult(modified=False)
        return PassResult(view.expand({node_key(node): _factor(view, node) for node in projections}))


def _factor(view: GraphView, node: NodeProto) -> list[NodeProto]:
    """Return the product by an identity matrix, and the one that reads it."""
    weight = node.input[1]
    basis = add_identity(view, weight, view.weights[weight].shape[0])
    result = view.fresh_name(f"{node.output[0]}_coordinates")
    name = f"{node.name or node.output[0]}_coordinates"
    return [helper.make_node("MatMul", [node.input[0], basis], [result], name), with_input(node, 0, result)]


def _may_be_narrower(view: GraphView, product: NodeProto) -> bool:
    """Whether two factors can be smaller than their product, and it is not one of two already."""
    before, (rows, columns) = view.producer(product.input[0]), view.weights[product.input[1]].shape
    is_factor = before is not None and multiplies_weight(view, before)
    if is_factor and len(view.consumers(product.input[0])) == 1:
        return False
    return rows * columns > rows + columns


class SplitProjections(SeamPass):
    """Let queries have a weight of their own, in front of which a matrix may be written.

    Case 1: GroupQueryAttention that reads x [W_q, W_k, W_v], as onnxruntime-genai's builder writes it, perhaps with a
    bias. It reads x W_q, and both parts of x [W_k, W_v], then.
    """

    def run(self, view: GraphView) -> PassResult:
        """Split the projection of every such node."""
        made: dict[str, list[NodeProto]] = {}
        parts: dict[str, str] = {}
        if view.opset() >= _SIZED and lookups.have_room(view):
            for node in view.nodes:
                projection = lookups.packed_projection(view, node)
                if projection is not None and self.writes(view, projection.weights[0]):
                    made |= {node_key(old): [] for old in projection.nodes}
                    made[node_key(node)], others = _split(view, projection, node)
                    parts |= dict(zip(others, projection.weights, strict=True))
        if view.expand(made):
            view.drop_inferable_infos()
        return PassResult(bool(made), parts)


def _split(view: GraphView, packed: lookups.Projection, node: NodeProto) -> tuple[list[NodeProto], list[str]]:
    """Return the nodes in place of a projection and the attention that reads it, and the weights of keys and values.

    Queries keep the names of the projection.
    """
    queries, keys = lookups.head_counts(node)
    columns = view.weights[packed.weights[0]].shape[1]
    own = columns // (queries + 2 * keys) * queries
    others, weights = _others(view, packed, own)
    for name in packed.weights:
        view.set_weight(name, np.ascontiguousarray(view.weight(name)[..., :own]))
    sizes = view.add_weight(f"{packed.weights[0]}_sizes", np.full(2, (columns - own) // 2, np.int64))
    result = packed.nodes[-1].output[0]
    parts = [view.fresh_name(f"{result}_{part}") for part in ("keys", "values")]
    split = helper.make_node("Split", [others[-1].output[0], sizes], parts, parts[0], axis=-1)
    attention = rewritten(node, inputs=[result, *parts, *node.input[3:]])
    return [*packed.nodes, *others, split, attention], weights


def _others(view: GraphView, packed: lookups.Projection, start: int) -> tuple[list[NodeProto], list[str]]:
    """Return nodes that write the columns of a projection from one on, and their weights."""
    made: list[NodeProto] = []
    weights: list[str] = []
    source = packed.nodes[0].input[0]
    for old, weight in zip(packed.nodes, packed.weights, strict=True):
        name = view.add_weight(f"{weight}_others", np.ascontiguousarray(view.weight(weight)[..., start:]))
        result = view.fresh_name(f"{old.output[0]}_others")
        made.append(rewritten(old, inputs=[name if n == weight else source for n in old.input], outputs=[result]))
        made[-1].name = f"{old.name or old.output[0]}_others"
        source = result
        weights.append(name)
    return made, weights
